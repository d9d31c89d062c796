"""What the Megatron-Core on PYTHONPATH saves here and now, on four and eight ranks, is read by the tool."""

import argparse
import pathlib
import tempfile
import unittest

import megatron_peer as megatron
import tool
import torch
import torch_peer
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron_peer import ShardedObject, ShardedTensor
from ranks import run_ranks
from rendering import difference, render

RANKS = 4
DTYPES = [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.bool, torch.float8_e5m2]


def numbered(*shape: int, dtype: torch.dtype = torch.float32, start: int = 0) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) + start).reshape(shape).to(dtype)


WHOLE = {
    "rows": numbered(8, 6), "grid": numbered(4, 6, dtype=torch.int64), "replicated": numbered(5, start=1), "scalar": torch.tensor(2.5),
    "layers.weight": numbered(4, 3, 2, dtype=torch.bfloat16), "decoder.weight": numbered(8, 6, dtype=torch.bfloat16, start=2), "swiglu": numbered(16, 3),
    **{f"types.{dtype}": numbered(3, 5, dtype=dtype) for dtype in DTYPES},
}
FLATTENED = {"optimizer.state.exp_avg.decoder.weight": numbered(8, 6, start=5)}
UNEVEN = {"uneven": numbered(10, dtype=torch.int32)}
COMMON = {"iteration": 9, "args": argparse.Namespace(lr=1e-5, flags=(True, None)), "groups": [{"step": 1}, {"step": 2}], "seen": {3: "int key"}}


def object_at(rank: int):
    return {"rank": rank, "tensor": numbered(3, start=rank), "tuple": (1, "two")}


def halves(key: str, tp: int, replica: tuple):
    """A SwiGLU weight: each rank holds its rows of both halves in one tensor, the file holds all of the first half before the second."""
    mine = torch.cat([half.chunk(2)[tp] for half in WHOLE[key].chunk(2)])

    def build(key, tensor, replica_id, flattened_range=None):
        return [ShardedTensor.from_rank_offsets(key, part.clone(), (0, index * 2 + tp, 4), replica_id=replica_id) for index, part in enumerate(tensor.chunk(2))]

    return ShardedTensorFactory(key, mine, build, torch.cat, replica)


def state_of(rank: int) -> dict:
    tp, dp = rank % 2, rank // 2
    part = ShardedTensor.from_rank_offsets
    state = {
        "rows": part("rows", WHOLE["rows"][rank * 2:rank * 2 + 2].clone(), (0, rank, 4)),
        "grid": part("grid", WHOLE["grid"][tp * 2:tp * 2 + 2, dp * 3:dp * 3 + 3].clone(), (0, tp, 2), (1, dp, 2)),
        "replicated": part("replicated", WHOLE["replicated"].clone(), replica_id=rank),
        "scalar": part("scalar", WHOLE["scalar"].clone(), replica_id=(0, rank)),
        "layers": part("layers.weight", WHOLE["layers.weight"][rank].clone(), (0, rank, 4), prepend_axis_num=1),
        "decoder": part("decoder.weight", WHOLE["decoder.weight"][tp * 4:tp * 4 + 4].clone(), (0, tp, 2), replica_id=(0, 0, dp)),
        "swiglu": halves("swiglu", tp, (0, 0, dp)),
        "rng": ShardedObject("rng_state", object_at(rank), (RANKS,), (rank,), replica_id=0),
        **COMMON,
    }
    for index, dtype in enumerate(DTYPES):
        key = f"types.{dtype}"
        state[key] = part(key, WHOLE[key].clone(), replica_id=(rank - index) % RANKS)
    if megatron.HAS_FLATTENED:
        key = "optimizer.state.exp_avg.decoder.weight"
        pieces = slice(0, 7) if dp == 0 else slice(7, 24)
        local = FLATTENED[key][tp * 4:tp * 4 + 4].flatten()[pieces].clone()
        state["optimizer"] = ShardedTensor.from_rank_offsets_flat(key, local, (4, 6), (0, tp, 2), flattened_range=pieces)
    else:
        begin, end = [(0, 1), (1, 5), (5, 10), (10, 10)][rank]
        state["uneven"] = ShardedTensor("uneven", UNEVEN["uneven"][begin:end].clone(), torch.int32, (end - begin,), (10,), (begin,), None)
    return state


def copy_of(rank: int, copy: int) -> dict:
    """What a rank holds that is copy number `copy` of one of the four."""
    state = state_of(rank)
    for leaf in state.values():
        if isinstance(leaf, (ShardedTensor, ShardedObject, ShardedTensorFactory)):
            own = leaf.replica_id if isinstance(leaf.replica_id, tuple) else (leaf.replica_id,)
            leaf.replica_id = (copy, *own)
    return state


class ToolReadsMegatron(unittest.TestCase):
    def save(self, wrap, copies: int = 1) -> pathlib.Path:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "checkpoint"
        path.mkdir()
        run_ranks(RANKS * copies, lambda rank: megatron.checkpointing.save(copy_of(rank % RANKS, rank // RANKS), str(path), wrap(megatron.strategy())))
        return path

    def check(self, path: pathlib.Path):
        tensors = WHOLE | (FLATTENED if megatron.HAS_FLATTENED else UNEVEN)
        self.assertEqual(tool.digests(path), torch_peer.digests(tensors))
        self.assertIsNone(difference(tool.objects(path), {f"rng_state/shard_{rank}_{RANKS}": render(object_at(rank)) for rank in range(RANKS)}))
        self.assertIsNone(difference(tool.common(path), render(COMMON)))
        tool.run("verify", "--deep", path)

    def test_main_replicas_write(self):
        self.check(self.save(lambda strategy: strategy))

    def test_fully_parallel_save(self):
        self.check(self.save(FullyParallelSaveStrategyWrapper))

    def test_fully_parallel_save_of_eight_ranks(self):
        self.check(self.save(FullyParallelSaveStrategyWrapper, copies=2))
