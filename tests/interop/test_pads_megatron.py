"""Tensors that are larger than what is stored are padded as Megatron-Core's zarr strategy pads them, which alone knows both ways."""

from __future__ import annotations

import os
import pathlib
import random
import tempfile
import unittest
from unittest import mock

import torch
import torch.distributed.checkpoint as dcp
from loads import our_answers
from megatron.core.dist_checkpointing.mapping import ShardedTensor
from megatron.core.dist_checkpointing.strategies.zarr import pad_to_expected_shape
from rendering import difference, render

SEED = int(os.environ.get("DCKPT_TEST_SEED", "20240229"))
CASES = 200


def padded(stored: torch.Tensor, wanted: list[int], pieces: list[int], piece: list[int], replicate: bool) -> tuple[torch.Tensor, list[int], list[int]]:
    """A piece of the wanted tensor as Megatron gives it, with its shape and offset."""
    local = [extent // count for extent, count in zip(wanted, pieces)]
    offset = [at * extent for at, extent in zip(piece, local)]
    inside = stored[tuple(slice(begin, begin + extent) for begin, extent in zip(offset, local))]
    shard = ShardedTensor("w", None, stored.dtype, tuple(local), tuple(wanted), tuple(offset), tuple(pieces), allow_shape_mismatch=True)
    with mock.patch.dict(os.environ, {"DIST_CKPT_PAD_REPLICATE": str(int(replicate))}), mock.patch("builtins.print"):
        return pad_to_expected_shape(inside, shard), local, offset


class PadsMegatron(unittest.TestCase):
    def test_random_shapes(self):
        print(f"DCKPT_TEST_SEED={SEED}")
        rng = random.Random(SEED)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        jobs, expected = [], []
        for case in range(CASES):
            stored = torch.randn(rng.randint(1, 9), rng.randint(1, 5)).to(rng.choice([torch.float32, torch.bfloat16]))
            pieces = [rng.randint(1, 3), 1]
            wanted = [-(-rng.randint(1, 12) // pieces[0]) * pieces[0], rng.randint(stored.shape[1], 6)]
            rows = wanted[0] // pieces[0]
            # Megatron replicates only what it has: a piece with at least one stored row.
            piece = [rng.randrange(min(pieces[0], -(-stored.shape[0] // rows))), 0]
            replicate = rng.random() < 0.7
            values, local, offset = padded(stored, wanted, pieces, piece, replicate)
            path = str(pathlib.Path(folder.name) / str(case))
            dcp.save({"w": stored}, checkpoint_id=path, no_dist=True)
            dtype = str(stored.dtype).removeprefix("torch.")
            jobs.append({"path": path, "replicate": replicate, "into": {"dict": [["mine", {"shard": ["w", dtype, local, wanted, offset]}]]}})
            expected.append({"mine": values})
        for job, ours, theirs in zip(jobs, our_answers(jobs), expected, strict=True):
            self.assertIsNone(difference(ours.get("state", ours), render(theirs)), f"{job}: {ours}")


if __name__ == "__main__":
    unittest.main()
