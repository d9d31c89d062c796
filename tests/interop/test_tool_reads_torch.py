"""What PyTorch saves here and now, on four ranks, is read by the tool."""

import argparse
import pathlib
import tempfile
import unittest

import tool
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch_peer
from ranks import run_ranks
from rendering import difference, render
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

RANKS = 4


def numbered(*shape: int, dtype: torch.dtype = torch.float32, start: int = 0) -> torch.Tensor:
    return (torch.arange(torch.Size(shape).numel()) + start).reshape(shape).to(dtype)


def plain_tensors() -> dict[str, torch.Tensor]:
    types = {str(dtype): numbered(3, 2, dtype=dtype) for dtype in
             (torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.bool, torch.float8_e4m3fn)}
    views = {"column": numbered(4, 6)[:, 2], "transposed": numbered(3, 5).t(), "expanded": numbered(1, 4).expand(3, 4), "row of many": numbered(1000, 4)[7]}
    return {**types, **views, "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3), "parameter": torch.nn.Parameter(numbered(2, 2))}


def plain_values() -> dict:
    return {"iteration": 12, "betas": (0.9, 0.999), "text": "ünï \"q\" \n", "big": 2**70, "list": [1.5, None],
            "args": argparse.Namespace(lr=1e-4, dtype=torch.bfloat16), "bytes": bytes(range(200)), "nothing": None, "set": {1, 2}}


def placements() -> dict[str, tuple[torch.Tensor, tuple[int, ...], list]]:
    """Key → global tensor, mesh, placements; sizes that the mesh does not divide."""
    return {
        "rows": (numbered(10, 3), (4,), [Shard(0)]),
        "columns": (numbered(3, 7, start=1), (4,), [Shard(1)]),
        "fewer rows than ranks": (numbered(3, 2, dtype=torch.bfloat16), (4,), [Shard(0)]),
        "replicated": (numbered(5, start=2), (4,), [Replicate()]),
        "grid": (numbered(5, 6, dtype=torch.int32), (2, 2), [Shard(0), Shard(1)]),
        "hybrid": (numbered(6, 4, start=3), (2, 2), [Replicate(), Shard(0)]),
    }


class ToolReadsTorch(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "checkpoint"

    def check(self, tensors: dict, objects: dict):
        self.assertEqual(tool.digests(self.path), torch_peer.digests(tensors))
        self.assertIsNone(difference(tool.objects(self.path), {key: render(value) for key, value in objects.items()}))
        tool.run("verify", "--deep", self.path)

    def test_plain_state(self):
        dcp.save({**plain_tensors(), **plain_values()}, checkpoint_id=str(self.path), no_dist=True)
        self.check(plain_tensors(), plain_values())

    def test_nested_state(self):
        state = {"model": {"layers": [{"w": numbered(2, 2)}, {"w": numbered(2, 3)}]}, "optimizer": {"state": {0: {"step": 3, "m": numbered(2, 2)}}}}
        dcp.save(state, checkpoint_id=str(self.path), no_dist=True)
        self.check({"model.layers.0.w": numbered(2, 2), "model.layers.1.w": numbered(2, 3), "optimizer.state.0.m": numbered(2, 2)}, {"optimizer.state.0.step": 3})

    def test_archives_without_checksums(self):
        before = torch.serialization.get_crc32_options()
        torch.serialization.set_crc32_options(False)
        self.addCleanup(torch.serialization.set_crc32_options, before)
        dcp.save({"w": numbered(100, 10)}, checkpoint_id=str(self.path), no_dist=True)
        self.check({"w": numbered(100, 10)}, {})

    def test_sharded_tensors(self):
        def save(rank: int) -> None:
            meshes = {shape: init_device_mesh("cpu", shape) for shape in ((4,), (2, 2))}
            state = {key: distribute_tensor(tensor, meshes[mesh], placed) for key, (tensor, mesh, placed) in placements().items()}
            assert all(isinstance(value, DTensor) for value in state.values())
            state["note"] = "the same on all ranks"
            dcp.save(state, storage_writer=dcp.FileSystemWriter(str(self.path), thread_count=2))
            dist.barrier()
        run_ranks(RANKS, save)
        self.assertGreater(len(list(self.path.glob("*.distcp"))), RANKS)
        self.check({key: tensor for key, (tensor, _, _) in placements().items()}, {"note": "the same on all ranks"})
