"""What save_sample.cpp must have written, known independently of it."""

from __future__ import annotations

import torch

TYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex32", "complex64",
         "complex128", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
ENTRIES = [
    ("rows", "float32", (8, 6)), ("grid", "int64", (4, 6)), ("replicated", "float32", (5,)), ("scalar", "float64", ()), ("empty", "float32", (0, 4)),
    ("layers.weight", "bfloat16", (4, 3, 2)), ("layers.bias", "float32", (2, 3)), ("uneven", "int32", (10,)), ("uneven_rows", "float16", (7, 5)),
    ("decoder.weight", "bfloat16", (8, 6)), ("optimizer.state.exp_avg.decoder.weight", "float32", (8, 6)),
    *((f"types.{name}", name, (3, 5)) for name in TYPES),
]


def pattern(number: int, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """Byte j of the row-major tensor is (j + number) mod 251; of a bool tensor, mod 2."""
    kind = getattr(torch, dtype)
    count = torch.Size(shape).numel() * kind.itemsize
    raw = (torch.arange(count) + number) % (2 if dtype == "bool" else 251)
    return raw.to(torch.uint8).view(kind).reshape(shape)


def tensors() -> dict[str, torch.Tensor]:
    return {key: pattern(number, dtype, shape) for number, (key, dtype, shape) in enumerate(ENTRIES)}


def objects() -> dict[str, object]:
    """By unique key."""
    random = {f"rng_state/shard_{rank}_4": {"rank": rank, "state": (1, 2.5, None), "tensor": pattern(rank, "uint8", (3,))} for rank in range(4)}
    cells = {f"cells/shard_{rank // 2}.{rank % 2}_2.2": f"cell {rank}" for rank in range(4)}
    return {**random, **cells, "same/shard_0_1": ["on", "all"]}


def common() -> dict:
    return {
        "iteration": 7,
        "args": {"lr": 1e-5, "name": "näme", "none": None, "flags": (True, False)},
        "param_groups": [{"step": 3}, {2: "int key"}],
        "big": 2**63,
        "bytes": b"\x01\x02",
        "common_tensor": pattern(0, "int16", (2, 2)),
    }
