"""Python values as JSON, by the rules of tests/data/README.md, and the comparison of such JSON. Only render() needs torch."""

from __future__ import annotations

import hashlib
import math
from typing import Any

LONG = 64           # more numbers than this in a list or tuple are summed up
SHORT_BYTES = 64    # up to this length bytes are spelt out


def render(value: Any) -> Any:
    """A Python object, tensors and all, as JSON."""
    import argparse
    import collections
    import enum
    import io
    import types

    import numpy
    import torch

    if value is None or isinstance(value, (bool, str)) and type(value) in (bool, str):
        return value
    if isinstance(value, enum.Enum):
        cls = type(value)
        return {"__enum__": f"{cls.__module__}.{cls.__qualname__}", "name": value.name, "value": render(value.value)}
    if isinstance(value, (numpy.generic,)):
        return {"__npscalar__": value.dtype.name, "value": render(value.item())}
    if type(value) is int:
        return value if abs(value) < 2**53 else {"__int__": str(value)}
    if type(value) is float:
        return value if math.isfinite(value) else {"__float__": str(value)}
    if type(value) is complex:
        return {"__complex__": [render(value.real), render(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {f"__{type(value).__name__}__": render_bytes(bytes(value))}
    if isinstance(value, io.BytesIO):
        return {"__BytesIO__": render_bytes(value.getvalue())}
    if isinstance(value, torch.Tensor):
        return {"__tensor__": render_tensor(value.detach())}
    if isinstance(value, numpy.ndarray):
        little = numpy.ascontiguousarray(value, value.dtype.newbyteorder("<")).reshape(value.shape)
        return {"__ndarray__": {"dtype": little.dtype.str, "shape": list(value.shape), "sha256": hashlib.sha256(little.tobytes()).hexdigest()}}
    if isinstance(value, torch.Size):
        return {"__torch.Size__": list(value)}
    if isinstance(value, torch.dtype):
        return {"__torch.dtype__": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"__torch.device__": str(value)}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        if len(value) > LONG and all(type(item) in (int, float) for item in value):
            joined = ",".join(map(repr, value))
            return {"__long__": type(value).__name__, "len": len(value), "sha256": hashlib.sha256(joined.encode()).hexdigest(), "first": list(value[:4])}
        items = [render(item) for item in value]
        return items if type(value) is list else {"__tuple__": items}
    if isinstance(value, (set, frozenset)):
        return {f"__{type(value).__name__}__": [render(item) for item in sorted(value, key=repr)]}
    if isinstance(value, dict):
        pairs = [[render(key), render(item)] for key, item in value.items()]
        if type(value) is collections.OrderedDict:
            return {"__OrderedDict__": pairs}
        if type(value) is collections.defaultdict:
            return {"__defaultdict__": pairs}
        if all(type(key) is str for key in value):
            return dict(pairs)
        return {"__dict__": pairs}
    if isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
        return {"__namespace__": {name: render(item) for name, item in vars(value).items()}}
    cls = type(value)
    return {"__repr__": repr(value), "class": f"{cls.__module__}.{cls.__qualname__}"}


def render_bytes(data: bytes) -> dict:
    rendered = {"len": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if len(data) <= SHORT_BYTES:
        rendered["hex"] = data.hex()
    return rendered


def render_tensor(tensor) -> dict:
    """dtype, shape, digest and first values of a tensor."""
    import torch

    if tensor.is_quantized:
        tensor = tensor.int_repr()
    first = tensor.flatten()[:4]
    if first.dtype.itemsize == 1 and first.dtype.is_floating_point:
        first = first.to(torch.float32)
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "sha256": digest(tensor), "first": [render(v) for v in first.tolist()]}


def digest(tensor) -> str:
    """SHA-256 of the elements, row-major and little-endian."""
    import torch

    raw = tensor.detach().contiguous().flatten().view(torch.uint8) if tensor.numel() else torch.empty(0, dtype=torch.uint8)
    return hashlib.sha256(raw.numpy().tobytes()).hexdigest()


def difference(got: Any, expected: Any, path: str = "") -> str | None:
    """Where two renderings differ, or nothing. An object that the tool keeps opaque agrees with whatever its class was rendered as."""
    if isinstance(got, dict) and "__opaque__" in got and isinstance(expected, dict):
        cls = expected.get("__enum__") or expected.get("class")
        return None if cls and got["__opaque__"]["class"] == cls else f"{path}: {got} instead of {expected}"
    if type(got) is not type(expected):
        return f"{path}: {shorten(got)} instead of {shorten(expected)}"
    if isinstance(expected, dict):
        if list(got) != list(expected) and set(got) != set(expected):
            return f"{path}: keys differ: {sorted(set(got) ^ set(expected))[:10]}"
        pairs = [(key, got[key], expected[key]) for key in expected]
    elif isinstance(expected, list):
        if len(got) != len(expected):
            return f"{path}: {len(got)} members instead of {len(expected)}"
        pairs = [(index, got[index], expected[index]) for index in range(len(expected))]
    else:
        return None if repr(got) == repr(expected) else f"{path}: {shorten(got)} instead of {shorten(expected)}"
    for key, mine, theirs in pairs:
        found = difference(mine, theirs, f"{path}.{key}")
        if found:
            return found
    return None


def shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
