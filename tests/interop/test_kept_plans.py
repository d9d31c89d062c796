"""Plans that a checkpoint keeps are what Megatron-Core, the release on PYTHONPATH, would plan for the same state: it takes them instead of planning anew."""

import dataclasses
import os
import pathlib
import pickle
import subprocess
import tempfile
import unittest

import megatron_peer as megatron
import tool
import torch
from megatron_peer import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies.torch import (MCoreSavePlanner, TorchDistLoadShardedStrategy, TorchDistSaveShardedStrategy,
                                                               _replace_state_dict_keys_with_sharded_keys, mcore_to_pyt_state_dict)
from ranks import run_ranks

RANKS = 2


def saved(folder: str, flattened: bool) -> pathlib.Path:
    path = pathlib.Path(folder) / "checkpoint"
    subprocess.run([os.environ["DCKPT_SAVE_WITH_PLANS"], path, "megatron" if flattened else "none"], check=True, timeout=120)
    return path


def state_of(rank: int, flattened: bool) -> dict:
    """What save_with_plans.cpp saves."""
    state = {
        "rows": ShardedTensor.from_rank_offsets("rows", torch.zeros(4, 6), (0, rank, RANKS)),
        "whole": ShardedTensor.from_rank_offsets("whole", torch.zeros(5, dtype=torch.bfloat16), replica_id=(0, rank)),
        "scalar": ShardedTensor.from_rank_offsets("scalar", torch.zeros((), dtype=torch.int64), replica_id=1 - rank),
    }
    for layer in range(2):
        state[f"layer{layer}"] = ShardedTensor.from_rank_offsets("layers.weight", torch.zeros(3), (0, 2 * rank + layer, 2 * RANKS), prepend_axis_num=1)
    if flattened:
        begin, end = [(0, 5), (5, 12)][rank]
        state["flattened"] = ShardedTensor.from_rank_offsets_flat("flattened", torch.zeros(end - begin), (2, 6), flattened_range=slice(begin, end))
    state["rng"] = ShardedObject("rng", rank, (RANKS,), (rank,))
    state["iteration"] = 7
    return state


def local_plan(rank: int, flattened: bool):
    """As TorchDistSaveShardedStrategy makes it."""
    sharded, _ = save_preprocess(state_of(rank, flattened), False)
    grouped, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded, True)
    options = {"nd_flattened_global_shapes": {}} if "nd_flattened_global_shapes" in MCoreSavePlanner.__init__.__code__.co_varnames else {}
    planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False, **options)
    planner.set_up_planner(mcore_to_pyt_state_dict(grouped, False), is_coordinator=rank == 0)
    return planner.create_local_plan()


def check_plan(rank: int, path: str, flattened: bool) -> None:
    """What verify_global_md_reuse compares, with the message that it leaves out."""
    with open(pathlib.Path(path) / ".metadata", "rb") as file:
        kept = pickle.load(file).all_local_plans
    assert len(kept) == RANKS
    plan = local_plan(rank, flattened)
    for field in dataclasses.fields(plan):
        if field.name != "storage_data":
            mine, theirs = getattr(plan, field.name), getattr(kept[rank], field.name)
            assert mine == theirs, f"rank {rank}, {field.name}: Megatron plans {mine}\nkept is {theirs}"


def resume(rank: int, path: str, again: str) -> None:
    """A training job of Megatron's that loads, and saves with what the loader has found; it must take the plans for its own."""
    original = torch.tensor
    torch.tensor = lambda *args, **kwargs: original(*args, **{**kwargs, "device": "cpu"})    # it asks for a GPU to reduce a flag
    loader, saver = TorchDistLoadShardedStrategy(), TorchDistSaveShardedStrategy("torch_dist", 1, cached_metadata=True)
    megatron.checkpointing.load(state_of(rank, False), path, sharded_strategy=loader)
    saver.cached_global_metadata = loader.cached_global_metadata
    megatron.checkpointing.save({**state_of(rank, False), "iteration": 8}, again, sharded_strategy=saver)
    assert saver.validated_loaded_metadata_reuse


class KeptPlans(unittest.TestCase):
    def check(self, flattened: bool):
        with tempfile.TemporaryDirectory() as folder:
            path = saved(folder, flattened)
            run_ranks(RANKS, lambda rank: check_plan(rank, str(path), flattened))

    def test_they_are_those_of_megatron(self):
        self.check(False)

    @unittest.skipUnless(megatron.HAS_FLATTENED, "this release has no flattened tensors")
    def test_also_of_flattened_tensors(self):
        self.check(True)

    def test_a_save_of_megatron_goes_on_from_them(self):
        with tempfile.TemporaryDirectory() as folder:
            path, again = saved(folder, False), pathlib.Path(folder) / "again"
            again.mkdir()
            run_ranks(RANKS, lambda rank: resume(rank, str(path), str(again)))
            run_ranks(RANKS, lambda rank: megatron.checkpointing.load(state_of(rank, False), str(again)))
            tool.run("verify", again)    # whose .metadata say nothing of the common.pt of the first save
