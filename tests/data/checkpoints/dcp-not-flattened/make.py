"""Made ckpt/ and expected.json once: python make.py, with torch 2.11.0 and tests/interop in PYTHONPATH. Values are taken from memory before saving."""

import collections
import hashlib
import json
import pathlib
import platform
import sys

import torch
import torch.distributed.checkpoint as dcp
from rendering import render
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner

torch.manual_seed(7)
base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
state = {
    "model": collections.OrderedDict(weight=torch.randn(4, 3), bias=torch.randn(4).bfloat16()),
    "optim": {
        "state": {0: {"step": torch.tensor(2.0), "exp_avg": torch.randn(4, 3), "exp_avg_sq": torch.randn(3, 4).t()}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "params": [0]}],
    },
    "views": [base[1:3], base[:, 2], base.t()],
    "parameters": {"p": torch.nn.Parameter(torch.ones(2, 2)), "empty": torch.zeros(0, 3), "fp8": torch.ones(4).to(torch.float8_e4m3fn)},
    "mixed": {"x": torch.arange(3), "pair": (1, torch.ones(2)), "none": None},
    "plain": torch.full((2, 2), 3.0),
    "epoch": 5,
    "values": {"a": 1, "b": [2, "three"]},
}
OPENED = ["model", "optim", "views", "parameters", "mixed"]
here = pathlib.Path(__file__).parent
dcp.save(state, checkpoint_id=str(here / "ckpt"), planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)

again = {key: torch.zeros(2, 2) if key == "plain" else None for key in state}
dcp.load(again, checkpoint_id=str(here / "ckpt"), planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False), no_dist=True)
flat, paths = flatten_state_dict({key: state[key] for key in OPENED})
flat |= {key: state[key] for key in state if key not in OPENED}
flat_again = flatten_state_dict({key: again[key] for key in OPENED})[0]


def described(tensor: torch.Tensor) -> dict:
    dense = tensor.detach().contiguous()
    first = dense.float().reshape(-1)[:4].tolist()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "global_shape": list(tensor.shape),
            "sha256": hashlib.sha256(dense.view(-1).view(torch.uint8).numpy().tobytes()).hexdigest(), "flattened": False, "first": first}


tensors = {key: described(value) for key, value in flat.items() if isinstance(value, torch.Tensor)}
assert tensors == {key: described({**flat_again, **again}[key]) for key in tensors}
expected = {
    "producer": {"megatron_core": None, "torch": torch.__version__.split("+")[0], "python": platform.python_version()},
    "world": {"size": 1},
    "how": "one process, flatten_state_dict=False (no_dist): a dict or list is one object with its tensors",
    "verified": [f"dcp.load with flatten_state_dict=False: {len(tensors)} tensors equal"],
    "tensors": tensors,
    "objects": {key: render(value) for key, value in flat.items() if key not in tensors},
    "common": {},
    "trees": {key: list(paths.get(key, (key,))) for key in flat},
}
(here / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
sys.stdout.write(f"{len(tensors)} tensors, {len(expected['objects'])} objects\n")
