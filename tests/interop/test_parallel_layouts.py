"""ParallelLayout against Megatron-Core: groups, positions, sharded tensors and the ranges of a distributed optimizer, for random sizes and orders."""

import itertools
import json
import math
import os
import random
import subprocess
import types
import unittest

import megatron_peer  # noqa: F401: without a GPU
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensorFactory
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBuffer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.utils import make_sharded_tensor_for_checkpoint, make_tp_sharded_tensor_for_checkpoint
from torch.testing._internal.distributed.fake_pg import FakeStore

SEED = int(os.environ.get("DCKPT_TEST_SEED", "20251125"))
NAMES = ["tp", "cp", "ep", "dp", "pp"]
LAYERS, EXPERTS = 4, 4


def ours(jobs: list[dict]) -> list:
    done = subprocess.run([os.environ["DCKPT_PARALLEL_ORACLE"]], input="\n".join(map(json.dumps, jobs)), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def random_layout(rng: random.Random, largest: int) -> dict:
    sizes = {name: rng.choice([1, 1, 2, 2, 3, 4]) for name in NAMES}
    order = NAMES if rng.random() < 0.3 else rng.sample(NAMES, 5)
    if rng.random() < 0.2:
        order = [name for name in order if sizes[name] > 1] or ["tp"]
    layout = {**sizes, "etp": rng.choice([0, 0, 1, 2]), "order": "-".join(order)}
    return layout if world(layout) <= largest else random_layout(rng, largest)


def world(layout: dict) -> int:
    return layout["tp"] * layout["cp"] * layout["dp"] * layout["pp"]


def generators(layout: dict):
    """Megatron's arrangements of the dense layers and of the experts; fails where Megatron does."""
    tp, pp, cp, ep, dp, order = (layout[name] for name in ["tp", "pp", "cp", "ep", "dp", "order"])
    etp = layout["etp"] or tp
    if world(layout) % (etp * ep * pp) != 0:
        raise RuntimeError("experts do not divide")
    dense = parallel_state.RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
    experts = parallel_state.RankGenerator(tp=etp, ep=ep, dp=world(layout) // (etp * ep * pp), pp=pp, cp=1, order=order)
    if dense.get_ranks("pp") != experts.get_ranks("pp"):
        raise RuntimeError("other pipelines")
    return dense, experts


class Rank:
    """A rank of Megatron's, without others."""

    def __init__(self, layout: dict, rank: int):
        self.layout, self.rank = layout, rank

    def __enter__(self):
        dist.init_process_group("fake", store=FakeStore(), rank=self.rank, world_size=world(self.layout))
        parallel_state.initialize_model_parallel(
            self.layout["tp"], self.layout["pp"], context_parallel_size=self.layout["cp"], expert_model_parallel_size=self.layout["ep"],
            expert_tensor_parallel_size=self.layout["etp"] or None, order=self.layout["order"], create_gloo_process_groups=False)
        return self

    def __exit__(self, *_):
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()


def positions() -> dict:
    ps = parallel_state
    return {"tp": ps.get_tensor_model_parallel_rank(), "cp": ps.get_context_parallel_rank(), "dp": ps.get_data_parallel_rank(),
            "pp": ps.get_pipeline_model_parallel_rank(), "dp_cp": ps.get_data_parallel_rank(with_context_parallel=True),
            "etp": ps.get_expert_tensor_parallel_rank(), "ep": ps.get_expert_model_parallel_rank(), "edp": ps.get_expert_data_parallel_rank()}


def counting(*shape) -> torch.Tensor:
    return torch.arange(math.prod(shape)).reshape(shape)


def places(shards: list[dict]) -> dict:
    """Element of the local tensor → its position in the global one."""
    found = {}
    for shard in shards:
        axes = [range(begin, begin + size) for begin, size in zip(shard["offset"], shard["sizes"])]
        found.update(zip(shard["elements"], itertools.product(*axes), strict=True))
    return found


def described(leaf) -> list[dict]:
    if isinstance(leaf, ShardedTensorFactory):
        return [shard for part in leaf.build() for shard in described(part)]
    return [{"offset": list(leaf.global_offset), "sizes": [1] * leaf.prepend_axis_num + list(leaf.local_shape), "global": list(leaf.global_shape),
             "replica": list(leaf.replica_id), "mismatch": leaf.allow_shape_mismatch, "elements": leaf.data.reshape(-1).tolist()}]


def experts_of_megatron(count: int, shape: list[int], axis, layer) -> list[list[dict]]:
    """What SequentialMLP makes of each local expert."""
    def describe(prefix, offsets, metadata):
        groups = {"tp_group": parallel_state.get_expert_tensor_parallel_group(), "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True)}
        if axis is None:
            return {"w": make_sharded_tensor_for_checkpoint(counting(*shape), prefix + "w", offsets, **groups)}
        return {"w": make_tp_sharded_tensor_for_checkpoint(counting(*shape), prefix + "w", axis, prepend_offsets=offsets, **groups)}

    class Expert:
        def sharded_state_dict(self, prefix, offsets, metadata=None):
            return {prefix + "w": describe(prefix, offsets, metadata)["w"]}

    layer_of_experts = types.SimpleNamespace(
        num_local_experts=count, local_experts=[Expert() for _ in range(count)], ep_group=parallel_state.get_expert_model_parallel_group(),
        dp_group=parallel_state.get_expert_data_parallel_group(), expert_parallel=True, config=types.SimpleNamespace(gated_linear_unit=False))
    leaves = SequentialMLP.sharded_state_dict(layer_of_experts, "", [(0, *layer)], {})
    return [described(leaf) for leaf in leaves.values()]


class ParallelLayouts(unittest.TestCase):
    def assert_same(self, own: list, theirs: list, where: str):
        self.assertEqual(places(own), places(theirs), where)
        for field in ["global", "replica", "mismatch"]:
            self.assertEqual({json.dumps(shard[field]) for shard in own}, {json.dumps(shard[field]) for shard in theirs}, f"{field} of {where}")

    def test_groups(self):
        print(f"DCKPT_TEST_SEED={SEED}")
        rng = random.Random(SEED)
        layouts = [random_layout(rng, 256) for _ in range(3000)]
        wanted = [("dense", "-".join(dims)) for count in [1, 2, 3] for dims in itertools.combinations(NAMES, count)]
        wanted += [("experts", "-".join(dims)) for count in [1, 2, 3] for dims in itertools.combinations(["tp", "ep", "dp", "pp"], count)]
        accepted = 0
        for layout, groups in zip(layouts, ours([{"layout": layout, "groups": wanted} for layout in layouts]), strict=True):
            try:
                dense, experts = generators(layout)
            except RuntimeError:
                self.assertIn("refused", groups, layout)
                continue
            accepted += 1
            self.assertEqual(groups, [(dense if grid == "dense" else experts).get_ranks(dims) for grid, dims in wanted], layout)
        self.assertGreater(accepted, 500)

    def test_positions_and_tensors(self):
        rng = random.Random(SEED)
        layouts = [{"tp": 2, "pp": 2, "ep": 1, "dp": 2, "cp": 1, "etp": 0, "order": "tp-cp-ep-dp-pp"}, {"tp": 2, "pp": 1, "ep": 4, "dp": 2, "cp": 2, "etp": 1, "order": "tp-cp-ep-dp-pp"},
                   {"tp": 2, "pp": 2, "ep": 2, "dp": 2, "cp": 2, "etp": 2, "order": "tp-cp-ep-pp-dp"}]
        while len(layouts) < 20:
            layout = random_layout(rng, 16)
            try:
                generators(layout)
            except RuntimeError:
                continue
            edp = world(layout) // ((layout["etp"] or layout["tp"]) * layout["ep"] * layout["pp"])
            if EXPERTS % layout["ep"] == 0 and (layout["order"].endswith("pp") or layout["pp"] == 1 or edp == layout["dp"]):
                layouts.append(layout)
        for layout in layouts:
            for rank in range(world(layout)):
                with self.subTest(layout=layout, rank=rank), Rank(layout, rank):
                    self.compare(layout, rank)

    def compare(self, layout: dict, rank: int):
        where = {"layout": layout, "rank": rank, "world": world(layout)}
        local = EXPERTS // layout["ep"]
        first = parallel_state.get_expert_model_parallel_rank() * local
        layer = [1, LAYERS]
        one = {"experts": {"count": EXPERTS, "number": first + local - 1}, "layer": layer}
        stacked = {"experts": {"count": EXPERTS}, "layer": layer}
        position, column, row, norm, vocabulary, gated, expert, expert_norm, stack = ours([where, *({**where, "describe": job} for job in [
            {"kind": "cut", "shape": [6, 4], "axis": 0}, {"kind": "cut", "shape": [6, 4], "axis": 1, "layer": layer}, {"kind": "replicated", "shape": [6], "layer": layer},
            {"kind": "vocabulary", "shape": [6, 4]}, {"kind": "gated", "shape": [6, 4], "layer": layer}, {"kind": "cut", "shape": [6, 4], "axis": 1, **one},
            {"kind": "replicated", "shape": [6], **one}, {"kind": "cut", "shape": [local, 6, 4], "axis": 0, **stacked}])])
        self.assertEqual(position, positions())
        cut = make_tp_sharded_tensor_for_checkpoint
        matrix, offset = counting(6, 4), (0, *layer)
        self.assert_same(column, described(cut(matrix, "w", 0)), "column parallel")
        self.assert_same(row, described(cut(matrix, "w", 1, prepend_offsets=[offset])), "row parallel")
        self.assert_same(norm, described(make_sharded_tensor_for_checkpoint(counting(6), "w", [offset])), "replicated")
        self.assert_same(vocabulary, described(cut(matrix, "w", 0, allow_shape_mismatch=True)), "vocabulary")
        self.assert_same(gated, described(apply_swiglu_sharded_factory(cut(matrix, "w", 0, prepend_offsets=[offset]), [offset])), "gated")
        self.assert_same(expert, experts_of_megatron(local, [6, 4], 1, layer)[-1], "expert")
        self.assert_same(expert_norm, experts_of_megatron(local, [6], None, layer)[-1], "expert's norm")
        for number, part in enumerate(experts_of_megatron(local, [6, 4], 0, layer)):
            for shard in part:
                shard["elements"] = [element + 24 * number for element in shard["elements"]]
            mine = {element: place for element, place in places(stack).items() if element // 24 == number}
            self.assertEqual(mine, places(part))
            self.assertEqual(stack[0]["replica"], part[0]["replica"])

    def test_ranges_of_the_distributed_optimizer(self):
        rng = random.Random(SEED)
        for dp, experts in itertools.product([1, 2, 3, 4], [False, True]):
            layout = {"tp": 1, "pp": 1, "ep": 1, "dp": dp, "cp": 2, "etp": 0, "order": "tp-cp-ep-dp-pp"}
            for rank in range(world(layout)):
                sizes = [rng.choice([1, 7, 64, 100, 333, 1000]) for _ in range(rng.randint(1, 9))]
                with Rank(layout, rank):
                    group = parallel_state.get_expert_data_parallel_group() if experts else parallel_state.get_data_parallel_group(with_context_parallel=True)
                    params = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
                    for param in params:
                        param.main_grad = None
                    groups = types.SimpleNamespace(tp=parallel_state.get_tensor_model_parallel_group(), dp_cp=group)
                    buffer = _ParamAndGradBuffer(DistributedDataParallelConfig(use_distributed_optimizer=True), torch.float32, torch.float32, params, group, None,
                                                 {param: "p" for param in params}, 1.0, list(range(len(params))), False, groups)
                    theirs = DistributedOptimizer._build_model_gbuf_range(buffer, 0)["param_map"]
                number = {id(param): str(n) for n, param in enumerate(reversed(params))}      # Megatron begins with the last parameter
                theirs = {number[id(param)]: [ranges["param"].start, ranges["param"].end, ranges["gbuf_local"].start] for param, ranges in theirs.items()}
                bucket = {"sizes": sizes[::-1], "param": 64, "end": 128, "experts": experts}
                own = ours([{"layout": layout, "rank": rank, "world": world(layout), "bucket": bucket}])[0]
                self.assertEqual(own["ranges"], theirs, bucket)
                self.assertEqual(own["owned"][1] - own["owned"][0], buffer.numel // group.size())


if __name__ == "__main__":
    unittest.main()
