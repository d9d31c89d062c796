"""Random jobs: whether the library takes them for a checkpoint, and how it plans them, against the Megatron-Core release on PYTHONPATH with its constructors, its check
of all ranks' shards together (validate_sharding_integrity), its fully parallel distribution and its save planner. Nothing is communicated: a "fake" process group stands for each rank.

A job is a list of leaves per rank, in the form in which plan_oracle.cpp takes them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
import random
import unittest
from collections import Counter
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem
from torch.testing._internal.distributed.fake_pg import FakeStore

import plans
from megatron_peer import HAS_FLATTENED, VERSION, ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing import exchange_utils
from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess
from megatron.core.dist_checkpointing.strategies.fully_parallel import distribute_main_replicas_with_precomputed_distribution
from megatron.core.dist_checkpointing.strategies.torch import MCoreSavePlanner, _replace_state_dict_keys_with_sharded_keys, mcore_to_pyt_state_dict
from megatron.core.dist_checkpointing.validation import validate_sharding_integrity

logging.disable(logging.CRITICAL)    # it logs an error for each job that it refuses

CASES = {1: 200, 2: 600, 3: 600, 4: 1000}    # world size → jobs that are planned
VERDICTS = 3000                              # jobs that are only checked
SHARED = {2: 150, 3: 100, 4: 200, 8: 100}    # world size → jobs whose replicas share the writing
DTYPES = ["float32", "bfloat16", "float16", "int64", "uint8", "bool"]


Part = tuple[str, "tuple[int, ...] | None"]    # key and offset; of an object only the key


# ---------------------------------------------------------------- random jobs

class Job:
    def __init__(self, rng: random.Random, world: int, most_changes: int):
        self.rng, self.world = rng, world
        self.ranks: list[list[dict]] = [[] for _ in range(world)]
        kinds = [self.add_regular, self.add_regular, self.add_object, self.add_flattened if HAS_FLATTENED else self.add_irregular]
        for number in range(rng.randint(1, 4)):
            rng.choice(kinds)(f"key{number}")
        self.spoiled = [self.spoil() for _ in range(rng.randint(1, most_changes) if rng.random() < 0.3 * most_changes else 0)]

    def hold(self, kind: str, **leaf) -> None:
        """One rank holds the main replica, others may hold copies."""
        main, *others = self.rng.sample(range(self.world), self.world)
        self.ranks[main].append({kind: {**leaf, "replica": self.rng.choice([0, [0, 0, 0]])}})
        for rank in others:
            if self.rng.random() < 0.25:
                self.ranks[rank].append({kind: {**leaf, "replica": self.rng.choice([1, [0, 1, 0], [0, 0, rank + 1]])}})

    def grid(self, axes: int) -> list[int]:
        """Pieces per axis; not more than eight in all."""
        while True:
            counts = [self.rng.randint(1, 3) if self.rng.random() < 0.5 else 1 for _ in range(axes)]
            if math.prod(counts) <= 8:
                return counts

    def cells(self, local: tuple[int, ...]):
        """How a tensor is cut: (rank offsets of a cell, prepended axes) for each cell."""
        prepended = self.rng.choice([0, 0, 0, 1, 2])
        counts = self.grid(prepended + len(local))
        cells = list(itertools.product(*map(range, counts)))
        self.rng.shuffle(cells)
        return [([[axis, at, count] for axis, (at, count) in enumerate(zip(cell, counts)) if count > 1], prepended) for cell in cells]

    def add_regular(self, key: str) -> None:
        dtype, local = self.rng.choice(DTYPES), self.local_shape(self.rng.randint(0, 3))
        for pieces, prepended in self.cells(local):
            self.hold("shard", key=key, dtype=dtype, local=local, pieces=pieces, prepend=prepended, grad=dtype.startswith(("float", "bfloat")))

    def add_flattened(self, key: str) -> None:
        """Each cell in ranges of up to all ranks, one on each."""
        dtype, local = self.rng.choice(DTYPES), self.local_shape(self.rng.randint(1, 3))
        elements = math.prod(local)
        for pieces, prepended in self.cells(local):
            owners = self.rng.sample(range(self.world), self.rng.randint(1, self.world))
            ends = sorted(self.rng.sample(range(1, elements + 1), len(owners) - 1)) if elements >= len(owners) else [elements] * (len(owners) - 1)
            for owner, begin, end in zip(owners, [0, *ends], [*ends, elements]):
                self.ranks[owner].append({"shard": {"key": key, "dtype": dtype, "local": local, "pieces": pieces, "prepend": prepended, "replica": 0, "range": [begin, end]}})

    def add_irregular(self, key: str) -> None:
        dtype, shape = self.rng.choice(DTYPES), plans.random_shape(self.rng, axes=self.rng.randint(1, 3))
        for offsets, sizes in plans.cut(self.rng, shape, self.rng.randint(1, 6)):
            self.hold("shard", key=key, dtype=dtype, **{"global": shape}, offset=offsets, local=sizes)

    def add_object(self, key: str) -> None:
        grid = self.grid(self.rng.randint(1, 2))
        for cell in itertools.product(*map(range, grid)):
            self.hold("object", key=key, **{"global": grid}, offset=cell)

    def local_shape(self, axes: int) -> tuple[int, ...]:
        return tuple(self.rng.randint(1, 5) for _ in range(axes))

    def spoil(self) -> str:
        """Changes one leaf; not always to the worse."""
        holders = [rank for rank in range(self.world) if self.ranks[rank]]
        if not holders:
            return "nothing is left"
        rank = self.rng.choice(holders)
        at = self.rng.randrange(len(self.ranks[rank]))
        (kind, leaf), = self.ranks[rank][at].items()
        leaf = dict(leaf)
        changes = ["gone", "replica"]
        if kind == "object" or leaf.get("range", [0, 1])[0] < leaf.get("range", [0, 1])[1]:    # 0.14 cannot plan two ranges of one cell on a rank
            changes += ["twice"]
        if kind == "object" or leaf.get("pieces") or "offset" in leaf:
            changes += ["place"]
        if kind == "shard":
            changes += ["dtype", "range", "range"] if "range" in leaf else ["dtype", "shape", "shape"]
        change = self.rng.choice(changes)
        if change == "gone":
            del self.ranks[rank][at]
            return change
        if change == "twice":
            self.ranks[self.rng.randrange(self.world)].append({kind: {**leaf, "replica": 0}})
            return change
        if change == "replica":
            leaf["replica"] = 1 if leaf["replica"] in (0, [0, 0, 0]) else 0
        if change == "place" and "pieces" in leaf:
            pieces = [list(piece) for piece in leaf["pieces"]]
            axis = self.rng.randrange(len(pieces))
            pieces[axis][1] = self.rng.randrange(pieces[axis][2])
            leaf["pieces"] = pieces
        if change == "place" and leaf.get("offset"):
            axis = self.rng.randrange(len(leaf["offset"]))
            size = 1 if kind == "object" else leaf["local"][axis]
            leaf["offset"] = plans.replaced(leaf["offset"], axis, self.rng.randint(0, max(leaf["global"][axis] - size, 0)))
        if change == "dtype":
            leaf["dtype"] = self.rng.choice(DTYPES)
        if change == "shape" and leaf["local"]:
            axis, by = self.rng.randrange(len(leaf["local"])), self.rng.choice([-1, 1])
            field = self.rng.choice(["offset", "local"]) if "offset" in leaf else "local"
            leaf[field] = plans.replaced(leaf[field], axis, max(leaf[field][axis] + by, 0 if "offset" in leaf else 1))
        if change == "range":
            elements = math.prod(leaf["local"])
            begin, end = (min(max(at + self.rng.choice([-1, 0, 1]), 0), elements) for at in leaf["range"])
            leaf["range"] = [begin, max(begin, end)]
        self.ranks[rank][at] = {kind: leaf}
        return change

    def describe(self, flattened: str) -> dict:
        trees = [{"dict": [[f"leaf{number}", leaf] for number, leaf in enumerate(leaves)]} for leaves in self.ranks]
        return {"save": {"kind": "mcore", "dedup": "balanced", "flattened": flattened}, "ranks": trees}


class SharedJob(Job):
    """Many replicas. In a nested job two parts are held by the same ranks, by different ones, or the holders of one are among those of the other, as with data
    parallelism within tensor parallelism; otherwise by any ranks."""

    def __init__(self, rng: random.Random, world: int):
        self.nested, self.with_objects = rng.random() < 0.7, rng.random() < 0.3
        self.holders = [[rank] for rank in range(world)] + [rng.sample(range(world), rng.randint(2, world)) for _ in range(world)]
        if self.nested:
            self.holders = list(self.halves(rng.sample(range(world), world)))
        super().__init__(rng, world, most_changes=0)
        for number in range(rng.randint(0, 8)):
            self.add_regular(f"more{number}")

    def halves(self, ranks: list[int]):
        yield ranks
        if len(ranks) > 1:
            yield from self.halves(ranks[:len(ranks) // 2])
            yield from self.halves(ranks[len(ranks) // 2:])

    def hold(self, kind: str, **leaf) -> None:
        holders = self.rng.choice(self.holders)
        main = self.rng.choice(holders)
        for rank in holders:
            self.ranks[rank].append({kind: {**leaf, "replica": int(rank != main)}})

    def add_object(self, key: str) -> None:
        if self.with_objects:
            super().add_object(key)

    def add_irregular(self, key: str) -> None:
        """Without empty parts: Megatron, too, knows a part by its offset."""
        before = [len(leaves) for leaves in self.ranks]
        super().add_irregular(key)
        if any(0 in leaf["shard"]["local"] for leaves, count in zip(self.ranks, before) for leaf in leaves[count:]):
            for leaves, count in zip(self.ranks, before):
                del leaves[count:]

    def describe(self, flattened: str) -> dict:
        job = super().describe(flattened)
        job["save"]["parallel"] = True
        return job

    def held_by(self) -> dict[Part, set[int]]:
        """The ranks that hold each part; flattened ones, which one rank holds, are missing."""
        held: dict[Part, set[int]] = {}
        for rank, leaves in enumerate(self.ranks):
            for (kind, leaf), in (each.items() for each in leaves):
                if "range" not in leaf:
                    shard = make(kind, leaf)
                    held.setdefault((shard.unique_key, None) if kind == "object" else (shard.key, tuple(shard.global_offset)), set()).add(rank)
        return held


def is_irregular(leaf: dict) -> bool:
    return "dtype" in leaf and "offset" in leaf


# ---------------------------------------------------------------- Megatron's side

def replica_id(leaf: dict):
    return tuple(leaf["replica"]) if isinstance(leaf["replica"], list) else leaf["replica"]


def hold_all(leaves: list[dict]) -> dict:
    """What Megatron would save of a rank's leaves."""
    state = {f"leaf{number}": make(*next(iter(leaf.items()))) for number, leaf in enumerate(leaves)}
    return save_preprocess(state, validate_access_integrity=False)[0]


def verdict(job: Job) -> str | None:
    """Why Megatron does not take a job's shards for a checkpoint."""
    try:
        validate_sharding_integrity([[shard.without_data() for shard in hold_all(leaves).values()] for leaves in job.ranks])
        return None
    except Exception as error:
        return repr(error)


def make(kind: str, leaf: dict) -> ShardedTensor | ShardedObject:
    if kind == "object":
        return ShardedObject(leaf["key"], "object", tuple(leaf["global"]), tuple(leaf["offset"]), replica_id(leaf))
    dtype, local = getattr(torch, leaf["dtype"]), tuple(leaf["local"])
    if "offset" in leaf:
        return ShardedTensor(leaf["key"], torch.empty(local, dtype=dtype), dtype, local, tuple(leaf["global"]), tuple(leaf["offset"]), None, replica_id(leaf))
    how = {"replica_id": replica_id(leaf), "prepend_axis_num": leaf["prepend"]}
    if "range" not in leaf:
        return ShardedTensor.from_rank_offsets(leaf["key"], torch.empty(local, dtype=dtype, requires_grad=leaf["grad"] and dtype.is_floating_point), *map(tuple, leaf["pieces"]), **how)
    begin, end = leaf["range"]
    return ShardedTensor.from_rank_offsets_flat(leaf["key"], torch.empty(end - begin, dtype=dtype), local, *map(tuple, leaf["pieces"]), flattened_range=slice(begin, end),
                                                **how)


@dataclasses.dataclass
class Theirs:
    """What Megatron makes of a job."""
    shards: list = dataclasses.field(default_factory=list)     # of each rank, without data
    locals: list = dataclasses.field(default_factory=list)     # plan of each rank
    planner: MCoreSavePlanner | None = None
    refused: str | None = None
    plan: tuple | None = None                                  # final plans and metadata, unless refused

    def plan_rank(self, rank: int, leaves: list[dict]) -> None:
        try:
            state = hold_all(leaves)
        except Exception as error:
            self.refused = f"construction: {error!r}"
            return
        self.shards.append([shard.without_data() for shard in state.values()])
        self.plan_state(rank, state)

    def plan_state(self, rank: int, state: dict) -> None:
        try:
            grouped, _, _ = _replace_state_dict_keys_with_sharded_keys(state, True)
            planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
            planner.set_up_planner(mcore_to_pyt_state_dict(grouped, False), is_coordinator=rank == 0)
            self.locals.append(planner.create_local_plan())
            self.planner = self.planner or planner
        except Exception as error:
            self.refused = self.refused or f"local plan: {error!r}"

    def plan_globally(self) -> None:
        if self.refused:
            return
        try:
            validate_sharding_integrity(self.shards)
            self.plan = self.planner.create_global_plan(self.locals)
        except Exception as error:
            self.refused = repr(error)


@contextlib.contextmanager
def as_rank(rank: int, world: int):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    try:
        yield
    finally:
        dist.destroy_process_group()


def plan_jobs(groups: dict[int, list[Job]]) -> list[tuple[Job, Theirs]]:
    planned = []
    for world, jobs in groups.items():
        here = [(job, Theirs()) for job in jobs]
        for rank in range(world):
            with as_rank(rank, world):
                for job, theirs in here:
                    theirs.plan_rank(rank, job.ranks[rank])
        with as_rank(0, world):
            for _, theirs in here:
                theirs.plan_globally()
        planned += here
    return planned


def plan_shared(groups: dict[int, list[SharedJob]]) -> list[tuple[SharedJob, Theirs]]:
    """With FullyParallelSaveStrategyWrapper's distribution, which each rank finds for itself from what all ranks have gathered."""
    planned = []
    for world, jobs in groups.items():
        here = [(job, Theirs(), [hold_all(leaves) for leaves in job.ranks]) for job in jobs]
        for _, theirs, states in here:
            theirs.shards = [[shard.without_data() for shard in state.values()] for state in states]
        for rank in range(world):
            with as_rank(rank, world):
                for _, theirs, states in here:
                    with as_gathered([[shard for shard in shards if isinstance(shard, ShardedTensor)] for shards in theirs.shards]):
                        distribution = exchange_utils.determine_main_replica_uniform_distribution(states[rank], None)
                    distribute_main_replicas_with_precomputed_distribution(states[rank], None, distribution)
                    theirs.plan_state(rank, states[rank])
        with as_rank(0, world):
            for _, theirs, _ in here:
                theirs.plan_globally()
        planned += [(job, theirs) for job, theirs, _ in here]
    return planned


def as_gathered(of_ranks: list):
    def gather(into: list, _, group=None) -> None:
        into[:] = of_ranks
    return mock.patch.object(dist, "all_gather_object", gather)


def has_misjudged_parts(locals: list) -> bool:
    """Known difference 1: torch's planner, below Megatron's, takes two parts with the same offset for the same part, also if one of them is empty, and keeps any
    of the two; and it takes an empty part inside another one for an overlap."""
    parts: dict[str, set] = {}
    for item in itertools.chain.from_iterable(plan.items for plan in locals):
        if item.tensor_data:
            parts.setdefault(item.index.fqn, set()).add((tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes)))
    return any(are_misjudged(*pair) for boxes in parts.values() for pair in itertools.permutations(boxes, 2))


def are_misjudged(box: plans.Box, other: plans.Box) -> bool:
    inside = all(begin <= at < begin + size or size == extent == 0 for at, extent, begin, size in zip(*box, *other))
    return box[0] == other[0] or 0 in box[1] and inside


def has_bad_irregular(job: Job) -> bool:
    """Known difference 2: Megatron does not check where irregular shards lie; torch's planner, to which it leaves that, sees main replicas only, removes those that
    exist several times, and does not miss those that exist nowhere, nor what a single rank lacks."""
    held: dict[str, list] = {}
    shapes = {}
    for leaf in [leaf["shard"] for leaf in itertools.chain.from_iterable(job.ranks) if "shard" in leaf and is_irregular(leaf["shard"])]:
        shapes[leaf["key"]] = leaf["global"]
        held.setdefault(leaf["key"], [])
        if any(begin + size > extent for begin, size, extent in zip(leaf["offset"], leaf["local"], leaf["global"])):
            return True
        if not any(leaf["replica"]) if isinstance(leaf["replica"], list) else leaf["replica"] == 0:
            held[leaf["key"]].append((leaf["offset"], leaf["local"]))
    return not all(plans.tiles(shapes[key], boxes) for key, boxes in held.items())


@dataclasses.dataclass
class Content:
    """What is stored. Known difference 3: Megatron stores chunks without elements, we leave them out; here they are left out of both."""
    tensors: dict = dataclasses.field(default_factory=dict)    # key → its metadata
    kept: list = dataclasses.field(default_factory=list)       # of each rank: what it writes, as (key, position of the chunk), None for an object
    positions: dict = dataclasses.field(default_factory=dict)  # of chunks with elements: (key, position with the others) → position without them

    def add(self, key: str, dtype: str, grad: bool, size: list[int], shape: list[int], chunks: list[tuple]) -> None:
        with_elements = [number for number, (_, sizes) in enumerate(chunks) if 0 not in sizes]
        self.positions.update({(key, number): position for position, number in enumerate(with_elements)})
        self.tensors[key] = {"dtype": dtype, "grad": grad, "size": size, "shape": shape, "chunks": [chunks[number] for number in with_elements]}

    def keep(self, items: list[tuple[str, int | None]]) -> None:
        self.kept.append(Counter((key, number if number is None else self.positions[key, number]) for key, number in items
                                 if number is None or (key, number) in self.positions))


def their_content(final, metadata) -> Content:
    content = Content()
    original = getattr(metadata, "mcore_data", {})
    for key, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            shape = original.get(key, {}).get("nd_reformulated_orig_global_shape", entry.size)
            content.add(key, str(entry.properties.dtype).removeprefix("torch."), entry.properties.requires_grad, list(entry.size), list(shape),
                        [(list(chunk.offsets), list(chunk.sizes)) for chunk in entry.chunks])
    for plan in final:
        content.keep([(item.index.fqn, None if isinstance(metadata.state_dict_metadata[item.index.fqn], BytesStorageMetadata) else item.index.index)
                      for item in plan.items])
    return content


def our_content(answer: dict) -> Content:
    content = Content()
    for tensor in answer["tensors"]:
        content.add(tensor["key"], tensor["dtype"], tensor["grad"], tensor["size"], tensor["shape"], [tuple(chunk) for chunk in tensor["chunks"]])
    for rank in answer["ranks"]:
        content.keep([(rank["items"][position]["key"], chunk) for position, chunk in rank["kept"]])
    return content


@dataclasses.dataclass
class Shares:
    """Who writes what."""
    writers: dict[Part, list[int]] = dataclasses.field(default_factory=dict)
    bytes: dict[Part, int] = dataclasses.field(default_factory=dict)
    loads: list[int] = dataclasses.field(default_factory=list)     # bytes of tensors of each rank

    def add_rank(self, items: list[tuple[Part, int]]) -> None:
        for part, size in items:
            self.writers.setdefault(part, []).append(len(self.loads))
            self.bytes[part] = size
        self.loads.append(sum(size for _, size in items))


def their_shares(final: list) -> Shares:
    def share(item: WriteItem) -> tuple[Part, int]:
        data = item.tensor_data
        return (item.index.fqn, tuple(data.chunk.offsets) if data else None), math.prod(data.chunk.sizes) * data.properties.dtype.itemsize if data else 0
    shares = Shares()
    for plan in final:
        shares.add_rank([share(item) for item in plan.items])
    return shares


def our_shares(answer: dict) -> Shares:
    def share(item: dict) -> tuple[Part, int]:
        return (item["key"], tuple(item["offsets"]) if "offsets" in item else None), math.prod(item["sizes"]) * getattr(torch, item["dtype"]).itemsize if "sizes" in item else 0
    shares = Shares()
    for rank in answer["ranks"]:
        shares.add_rank([share(rank["items"][position]) for position, _ in rank["kept"]])
    return shares


# ---------------------------------------------------------------- the comparison

class Plans(unittest.TestCase):
    maxDiff = 6000

    def test_verdicts(self):
        print(f"Megatron-Core {VERSION}, DCKPT_TEST_SEED={plans.SEED}")
        rng = random.Random(plans.SEED)
        jobs = [Job(rng, world=rng.randint(1, 5), most_changes=3) for _ in range(VERDICTS)]
        form = "boxes" if HAS_FLATTENED else "megatron"
        seen = Counter()
        with as_rank(0, 1):
            theirs = [verdict(job) for job in jobs]
        for number, (job, refused, ours) in enumerate(zip(jobs, theirs, plans.our_answers([job.describe(form) for job in jobs]), strict=True)):
            with self.subTest(job=number, spoiled=job.spoiled, ranks=job.ranks):
                seen["refused" if refused else "accepted"] += 1
                expected = bool(refused) or has_bad_irregular(job)
                self.assertEqual("refused" in ours, expected, f"we: {ours.get('refused')}; Megatron: {refused}")
        print(dict(seen))
        self.assertGreater(min(seen["refused"], seen["accepted"]), VERDICTS // 5)

    def test_saves(self):
        print(f"Megatron-Core {VERSION}, DCKPT_TEST_SEED={plans.SEED}")
        rng = random.Random(plans.SEED)
        planned = plan_jobs({world: [Job(rng, world, most_changes=1) for _ in range(count)] for world, count in CASES.items()})
        forms = ["megatron", "boxes"] if HAS_FLATTENED else ["megatron"]
        answers = plans.our_answers([job.describe(form) for job, _ in planned for form in forms])
        seen = Counter()
        for number, (job, theirs) in enumerate(planned):
            ours = answers[number * len(forms):(number + 1) * len(forms)]
            with self.subTest(job=number, spoiled=job.spoiled, ranks=job.ranks):
                seen[self.compare(job, theirs, ours)] += 1
        print(dict(seen))
        self.assertGreater(seen["planned"], len(planned) // 2)
        self.assertGreater(seen["refused by both"], len(planned) // 10)

    def compare(self, job: Job, theirs: Theirs, ours: list[dict]) -> str:
        refused = ["refused" in answer for answer in ours]
        self.assertEqual(len(set(refused)), 1, "one form is refused and the other one not")
        reasons = f"we: {ours[0].get('refused')}; Megatron: {theirs.refused}"
        if refused[0] and theirs.refused:
            return "refused by both"
        if refused[0]:
            self.assertTrue(has_bad_irregular(job), reasons)
            return "refused by us alone"
        if has_misjudged_parts(theirs.locals):
            return "misjudged by torch"
        self.assertIsNone(theirs.refused, reasons)
        found, expected = our_content(ours[0]), their_content(*theirs.plan)
        self.assertEqual(found.tensors, expected.tensors)
        self.assertEqual(found.kept, expected.kept)
        entries = theirs.plan[1].state_dict_metadata
        if not any(0 in chunk.sizes for entry in entries.values() if isinstance(entry, TensorStorageMetadata) for chunk in entry.chunks):
            self.assertEqual(ours[0]["keys"], list(entries))    # else a chunk without elements may be the first of its key
        return "planned"

    def test_shared_saves(self):
        """Fully parallel: which replica writes a part."""
        print(f"Megatron-Core {VERSION}, DCKPT_TEST_SEED={plans.SEED}")
        rng = random.Random(plans.SEED)
        planned = plan_shared({world: [SharedJob(rng, world) for _ in range(count)] for world, count in SHARED.items()})
        highest = Counter()
        for (job, theirs), answer in zip(planned, plans.our_answers([job.describe("megatron") for job, _ in planned]), strict=True):
            with self.subTest(ranks=job.ranks):
                self.assertIsNone(theirs.refused)
                self.assertNotIn("refused", answer)
                ours, expected = our_shares(answer), their_shares(theirs.plan[0])
                self.compare_shares(job, ours, expected)
                kind = "nested" if job.nested else "any holders"
                highest[kind, "ours"] += max(ours.loads)
                highest[kind, "Megatron's"] += max(expected.loads)
                highest[kind, "jobs"] += 1
        print(dict(highest))
        self.assertLessEqual(highest["any holders", "ours"], 1.01 * highest["any holders", "Megatron's"])    # in other orders among parts of equal size

    def compare_shares(self, job: SharedJob, ours: Shares, theirs: Shares) -> None:
        held = job.held_by()
        self.assertEqual(ours.bytes, theirs.bytes)
        self.assertEqual(sum(ours.loads), sum(theirs.loads))
        for part, writers in ours.writers.items():
            self.assertEqual(len(writers), 1, part)
            self.assertIn(writers[0], held.get(part, theirs.writers[part]), part)
        if not job.nested:
            return
        objects = [part for part in ours.writers if part[1] is None]
        for part in objects:
            self.assertEqual(ours.writers[part], theirs.writers[part], part)
        self.assertLessEqual(max(ours.loads), max(theirs.loads) + len(objects))
        if objects:    # Known difference 4: they have a weight of one byte
            return
        self.assertEqual(ours.loads, theirs.loads)
        alike = Counter((frozenset(ranks), ours.bytes[part]) for part, ranks in held.items())
        for part, ranks in held.items():
            if alike[frozenset(ranks), ours.bytes[part]] == 1:    # the order of those that are alike is not defined
                self.assertEqual(ours.writers[part], theirs.writers[part], part)


if __name__ == "__main__":
    unittest.main()
