"""What a rank holds of a tensor on a device mesh: ours against real torch, for thousands of random meshes and placements and for FSDP2 itself."""

import itertools
import json
import math
import os
import random
import subprocess
import unittest

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Replicate, Shard, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

PARTS = os.environ["DCKPT_LAYOUT_PARTS"]
SEED = int(os.environ.get("DCKPT_TEST_SEED", "20240229"))
CASES = 3000


def spelling(placement) -> str:
    if isinstance(placement, _StridedShard):
        return f"SS {placement.dim} {placement.split_factor}"
    return f"S {placement.dim}" if isinstance(placement, Shard) else "R"


def line(shape, mesh, placements, order=()) -> str:
    return " ".join(map(str, ["shape", *shape, "mesh", *mesh, "place", *map(spelling, placements), "order", *order]))


def our_parts(lines: list[str]) -> list[list[dict]]:
    """Per case and rank."""
    done = subprocess.run([PARTS], input="\n".join(lines), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(answer) for answer in done.stdout.splitlines()]


def numbered(shape) -> torch.Tensor:
    return torch.arange(math.prod(shape)).reshape(shape)


def local_tensor(whole: torch.Tensor, part: dict) -> torch.Tensor:
    """The local tensor that our description gives; -1 where no piece lies."""
    local = torch.full(part["shape"], -1)
    for offsets, sizes, local_offsets in part["pieces"]:
        source = whole[tuple(slice(begin, begin + size) for begin, size in zip(offsets, sizes))]
        local[tuple(slice(begin, begin + size) for begin, size in zip(local_offsets, sizes))] = source
    return local


def split_by_torch(whole: torch.Tensor, mesh, placements, coordinate) -> torch.Tensor:
    """Mesh dimension by mesh dimension with the placements' own function."""
    for placement, count, index in zip(placements, mesh, coordinate):
        if not isinstance(placement, Replicate):
            whole = placement._split_tensor(whole, count, with_padding=False)[0][index]
    return whole


def random_case(rng: random.Random):
    shape = [rng.choice([0, 1, 2, 3, 5, 8, 13, 17]) if rng.random() < 0.6 else rng.randint(1, 24) for _ in range(rng.randint(1, 3))]
    mesh = [rng.randint(1, 4) for _ in range(rng.randint(1, 3))]
    kinds = [lambda: Replicate(), lambda: Shard(rng.randrange(len(shape))), lambda: _StridedShard(rng.randrange(len(shape)), split_factor=rng.randint(1, 5))]
    return shape, mesh, [rng.choice(kinds)() for _ in mesh]


class Layouts(unittest.TestCase):
    def test_random_layouts_are_torchs(self):
        print(f"DCKPT_TEST_SEED={SEED}")
        rng = random.Random(SEED)
        cases = [random_case(rng) for _ in range(CASES)]
        several_pieces = 0
        for (shape, mesh, placements), parts in zip(cases, our_parts([line(*case) for case in cases]), strict=True):
            whole = numbered(shape)
            coordinates = list(itertools.product(*map(range, mesh)))
            mains = []
            for coordinate, part in zip(coordinates, parts, strict=True):
                where = f"{shape} as {placements} on {mesh} at {coordinate}"
                sizes, offsets = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), placements)
                self.assertEqual((part["shape"], part["pieces"][0][0]), (list(sizes), list(offsets)), where)
                local = local_tensor(whole, part)
                self.assertTrue(torch.equal(local, split_by_torch(whole, mesh, placements, coordinate)), where)
                several_pieces += len(part["pieces"]) > 1
                if part["replica"] == 0:
                    mains.append(local.reshape(-1))
            self.assertTrue(torch.equal(torch.cat(mains).sort().values, whole.reshape(-1)), f"main replicas of {shape} as {placements} on {mesh}")
        self.assertGreater(several_pieces, CASES // 10)

    def test_fsdp2_over_tensor_parallelism(self):
        """What FSDP2 really keeps on each rank. Where the rows do not divide, this is not what its own placements say, but always the other order."""
        for rows, dp, tp in [(16, 4, 2), (14, 2, 2), (9, 2, 2), (9, 4, 2), (5, 2, 3), (3, 2, 2), (7, 3, 2)]:
            with self.subTest(rows=rows, dp=dp, tp=tp):
                real, placements = fsdp2_locals(rows, dp, tp)
                by_order, by_placements = our_parts([line([rows, 2], [dp, tp], [Shard(0), Shard(0)], [1, 0]), line([rows, 2], [dp, tp], placements)])
                whole = numbered([rows, 2])
                self.assertEqual([local_tensor(whole, part).tolist() for part in by_order], real)
                self.assertEqual(placements, (_StridedShard(0, split_factor=tp), Shard(0)))
                if rows % (dp * tp) == 0:
                    self.assertEqual([local_tensor(whole, part).tolist() for part in by_placements], real)


def fsdp2_locals(rows: int, dp: int, tp: int):
    """Local weights of a linear layer, by rank, and the placements that FSDP2 gives them. One rank after the other, without communication."""
    found = []
    for rank in range(dp * tp):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=dp * tp)
        try:
            mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
            layer = torch.nn.Linear(2, rows, bias=False)
            with torch.no_grad():
                layer.weight.copy_(numbered([rows, 2]))
            parallelize_module(layer, mesh["tp"], ColwiseParallel(), src_data_rank=None)
            fully_shard(layer, mesh=mesh["dp"])
            found.append(layer.weight.to_local().to(torch.int64).tolist())
            placements = layer.weight.placements
        finally:
            dist.destroy_process_group()
    return found, placements


if __name__ == "__main__":
    unittest.main()
