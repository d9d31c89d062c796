"""Plain DCP directories that torch saves, in its present manner and in that of 2.3, load as torch itself loads them: into a state dict, in part, and without one."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import random
import re
import tempfile
import unittest

import torch
import torch.distributed.checkpoint as dcp
import torch_peer  # noqa: F401  (quietens torch)
from loads import our_answers
from rendering import difference, render
from torch.distributed.checkpoint import _version
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

SEED = int(os.environ.get("DCKPT_TEST_SEED", "20240229"))
SAVES = 60
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2]


@contextlib.contextmanager
def flattening(version: str | None):
    _version._derived_version = version
    try:
        yield
    finally:
        _version._derived_version = None


def random_tensor(rng: random.Random) -> torch.Tensor:
    shape = [rng.randint(1, 4) for _ in range(rng.randint(0, 2))]
    dtype = rng.choice(DTYPES)
    return torch.randint(0, 2 if dtype == torch.bool else 100, shape).to(torch.float32).to(dtype)


# No container is empty: torch drops these when it saves, and asks for them when it takes a checkpoint for one of 2.3.

def random_value(rng: random.Random, depth: int):
    kind = rng.random()
    if depth > 0 and kind < 0.35:
        return random_dict(rng, depth - 1)
    if depth > 0 and kind < 0.5:
        return [random_value(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if kind < 0.75:
        return random_tensor(rng)
    return rng.choice([3, 0.5, "text", None, True, (1, 2), [1, 2], [[1], [2]], {"lr": 0.1}, {"groups": [{"lr": 1}, {"lr": 2}]}])


def random_dict(rng: random.Random, depth: int) -> dict:
    names = rng.sample(["a", "b", "c", "model", "optimizer", "0", "layer.weight"], rng.randint(1, 4))
    return {name: random_value(rng, depth) for name in names}


def zeroed(rng: random.Random, value, changes: float):
    """The same tree before it is loaded: tensors of zeros, other scalars; some scalars of dicts gone, some new."""
    if isinstance(value, dict):
        kept = {key: zeroed(rng, item, changes) for key, item in value.items() if isinstance(item, (dict, list, torch.Tensor)) or rng.random() >= changes}
        kept = kept or zeroed(rng, value, 0)
        return {**kept, "new": "own value"} if rng.random() < changes / 2 else kept
    if type(value) is list:
        return [zeroed(rng, item, changes) for item in value]
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape).to(value.dtype)
    return 0


def tree(value):
    """As load_oracle.cpp reads it."""
    if isinstance(value, dict):
        return {"dict": [[key, tree(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return {"list": [tree(item) for item in value]}
    if isinstance(value, torch.Tensor):
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape)]}
    return value


def names_for(rng: random.Random, state: dict) -> list[str]:
    """Keys, paths that lead to them, and names of nothing. None leads into a list: of those torch loads what lies before the position, too, or fails."""
    paths = list(flatten_state_dict(state)[1].values())
    names = ["nothing", "mod"]
    for path in rng.sample(paths, min(len(paths), 3)):
        steps = list(itertools.takewhile(lambda step: type(step) is str, path))
        names.append(".".join(steps[:rng.randint(1, len(steps))]))
    return rng.sample(names, rng.randint(1, len(names)))


class LoadsTorch(unittest.TestCase):
    def setUp(self):
        print(f"DCKPT_TEST_SEED={SEED}")
        torch.manual_seed(SEED)
        self.rng = random.Random(SEED)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.count = 0

    def save(self, state: dict, version: str | None) -> str:
        self.count += 1
        path = str(self.folder / str(self.count))
        with flattening(version):
            dcp.save(state, checkpoint_id=path, no_dist=True)
        return path

    def random_saves(self):
        """Path and state of checkpoints in both manners of flattening."""
        for case in range(SAVES):
            state = random_dict(self.rng, 3)
            yield self.save(state, "2_3" if case % 2 else None), state

    def compare(self, jobs: list[dict], expected: list):
        for job, ours, theirs in zip(jobs, our_answers(jobs), expected, strict=True):
            if isinstance(theirs, str):
                self.assertIn("refused", ours, f"{job}: torch misses {theirs}")
                self.assertIn("Missing key in checkpoint state_dict", ours["refused"])
                self.assertIn(theirs, ours["refused"])
            else:
                self.assertIsNone(difference(ours.get("state", ours), render(theirs)), f"{job}: {ours.get('refused')!r}")

    def test_without_a_state_dict(self):
        jobs, expected = [], []
        for path, state in self.random_saves():
            for keys in ([], names_for(self.rng, state), names_for(self.rng, state)):
                theirs = _load_state_dict_from_keys(set(keys) or None, checkpoint_id=path)
                jobs.append({"path": path, "keys": keys})
                expected.append(theirs)
        self.compare(jobs, expected)

    def into(self, changes: float, partial: bool) -> int:
        jobs, expected = [], []
        for path, saved in self.random_saves():
            state = zeroed(self.rng, saved, changes)
            jobs.append({"path": path, "into": tree(state), "partial": partial})
            try:
                dcp.load(state, checkpoint_id=path, planner=DefaultLoadPlanner(allow_partial_load=partial), no_dist=True)
                expected.append(state)
            except CheckpointException as error:
                expected.append(re.search(r"Missing key in checkpoint state_dict: (.*)\.$", str(error), re.MULTILINE).group(1))
        self.compare(jobs, expected)
        return sum(isinstance(theirs, str) for theirs in expected)

    def test_into_the_same_state_dict(self):
        self.into(changes=0, partial=False)

    def test_into_another_state_dict(self):
        self.assertGreater(self.into(changes=0.3, partial=False), 5)

    def test_in_part(self):
        self.assertEqual(self.into(changes=0.3, partial=True), 0)

    def test_states_that_were_not_flattened(self):
        jobs, expected = [], []
        for _ in range(SAVES // 2):
            state = random_dict(self.rng, 3)
            self.count += 1
            path = str(self.folder / str(self.count))
            dcp.save(state, checkpoint_id=path, planner=DefaultSavePlanner(flatten_state_dict=False), no_dist=True)
            jobs += [{"path": path, "keys": []}, {"path": path, "into": tree(zeroed(self.rng, state, 0)), "partial": False}]
            expected += [state, state]
        self.compare(jobs, expected)

    def test_sizes_must_agree(self):
        path = self.save({"w": torch.ones(2, 3)}, None)
        with self.assertRaisesRegex(CheckpointException, "Size mismatch between saved") as refused:
            dcp.load({"w": torch.zeros(3, 3)}, checkpoint_id=path, no_dist=True)
        del refused
        ours, = our_answers([{"path": path, "into": tree({"w": torch.zeros(3, 3)}), "partial": True}])
        self.assertIn("Size mismatch between saved (2, 3) and current: (3, 3) for 'w'", ours["refused"])


if __name__ == "__main__":
    unittest.main()
