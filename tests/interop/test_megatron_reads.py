"""What the tool converts and what the library saves is loaded by Megatron-Core, the release on PYTHONPATH, and equals what the producers had."""

import copy
import json
import os
import pathlib
import pickle
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

import megatron_peer as megatron
import sample
import tool
import torch
import torch_peer
from megatron_peer import ShardedTensor
from ranks import run_ranks
from rendering import difference, render


def save_sample(folder: pathlib.Path, flattened: str, *more: str) -> pathlib.Path:
    path = folder / "-".join(["sample", flattened, *more])
    subprocess.run([os.environ["DCKPT_SAVE_SAMPLE"], path, "megatron", flattened, *more], check=True, timeout=120)
    return path


class MegatronReads(unittest.TestCase):
    maxDiff = 4000

    @classmethod
    def setUpClass(cls):
        megatron.join()
        cls.addClassCleanup(torch.distributed.destroy_process_group)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check_all(self, path: pathlib.Path, tensors: dict, objects: dict, common):
        self.assertEqual(torch_peer.digests(megatron.load_plain_tensors(path)), tensors)
        self.assertIsNone(difference({key: render(value) for key, value in megatron.load_objects(path).items()}, objects))
        self.assertIsNone(difference(render(megatron.load_common(path)), common))

    def check_golden(self, name: str, *options: str):
        path = self.folder / "-".join([name, *options])
        source = tool.GOLDENS / name / "ckpt"
        if "--flattened" not in options:  # a copy keeps its form; on the way through DCP it becomes boxes
            source = self.folder / f"{name}-boxes"
            tool.run("convert", tool.GOLDENS / name / "ckpt", source, "--to", "dcp")
        tool.run("convert", source, path, "--to", "torch_dist", "--compat", "megatron", *options)
        expected = tool.expected(name)
        self.check_all(path, tool.wanted_digests(expected), expected["objects"], expected["common"])

    def test_goldens_cut_anew(self):
        for name in tool.goldens("mcore", "zarr"):
            with self.subTest(name):
                self.check_golden(name, "--ranks", "3")

    def test_mapped_models_have_all_that_megatron_asks_for(self):
        """A missing key is an error by default, also that of an object without a value (_extra_state)."""
        for pair in sorted(file.parent for file in (tool.ROOT / "tests" / "data" / "hf_pairs").glob("*/pair.json")):
            with self.subTest(pair.name):
                path = self.folder / pair.name
                tool.run("convert", pair / "hf", path, "--to", "torch_dist", "--map", pair.name, "--set", f"layout={json.loads((pair / 'pair.json').read_text())['layout']}")
                entries = megatron.checkpointing.serialization.load_sharded_metadata(str(pair / "mcore"))
                loaded = megatron.checkpointing.load({key: entry for key, entry in entries.items() if not key.startswith("common_state")}, str(path), validate_access_integrity=False)
                self.assertTrue(loaded)

    @unittest.skipUnless(megatron.HAS_FLATTENED, "this release reads no flattened tensors")
    def test_goldens_with_flattened_tensors(self):
        for name in tool.goldens("mcore"):
            if any(entry["flattened"] for entry in tool.expected(name)["tensors"].values()):
                for ranks in ([], ["--ranks", "3"]):
                    with self.subTest(name, ranks=ranks):
                        self.check_golden(name, "--flattened", "megatron", *ranks)

    @unittest.skipUnless(megatron.HAS_FLATTENED and "DCKPT_TENSORSTORE" in os.environ, "this release reads no zarr, or DCKPT_TENSORSTORE names no folder of packages")
    def test_goldens_written_as_zarr(self):
        sys.path.append(os.environ["DCKPT_TENSORSTORE"])
        self.addCleanup(sys.path.remove, os.environ["DCKPT_TENSORSTORE"])
        for name in ("mcore-0.16-fully-reshardable-tp2pp2dp2", "mcore-0.14-flattened-tp2pp2dp2", "legacy-torch-tp2pp2"):
            with self.subTest(name):
                path = self.folder / name
                tool.run("convert", tool.GOLDENS / name / "ckpt", path, "--to", "zarr")
                self.assertEqual(torch_peer.digests(megatron.load_plain_tensors(path)), tool.wanted_digests(tool.expected(name)))
                self.assertIn("args", megatron.load_common(path))

    def test_plain_dcp_as_megatron_checkpoint(self):
        for name in tool.goldens("dcp"):
            if "fsdp-dtensor" in name:  # which gets Megatron-Core's keys
                continue
            with self.subTest(name):
                path = self.folder / name
                tool.run("convert", tool.GOLDENS / name / "ckpt", path, "--to", "torch_dist")
                self.assertEqual(torch_peer.digests(megatron.load_plain_tensors(path)), tool.wanted_digests(tool.expected(name)))

    def test_saved_by_the_library(self):
        for flattened in ["boxes", "megatron"] if megatron.HAS_FLATTENED else ["boxes"]:
            with self.subTest(flattened):
                self.check_all(save_sample(self.folder, flattened), torch_peer.digests(sample.tensors()), {key: render(value) for key, value in sample.objects().items()},
                               render(sample.common()))

    def test_saved_by_eight_ranks_that_share_the_writing(self):
        path = save_sample(self.folder, "boxes", "", "2")
        writers = {file.name.split("_")[2] for file in path.glob("*.distcp")}
        self.assertTrue(writers & set("4567"), "ranks with copies write, too")
        self.check_all(path, torch_peer.digests(sample.tensors()), {key: render(value) for key, value in sample.objects().items()}, render(sample.common()))

    def test_a_tensor_of_which_each_replica_wrote_a_part(self):
        path = save_sample(self.folder, "boxes", "", "2", "split")
        loaded = megatron.load_plain_tensors(path)["large"]
        self.assertTrue(torch.equal(loaded.view(torch.uint8), sample.pattern(100, "float32", (2048, 2080)).view(torch.uint8)))

    def test_keys_that_have_files_of_their_own(self):
        hint = "types."
        path = save_sample(self.folder, "boxes", hint)
        self.assertEqual({file.name.startswith(hint) for file in path.glob("*.distcp")}, {True, False})
        objects = {key: render(value) for key, value in sample.objects().items()}
        self.check_all(path, torch_peer.digests(sample.tensors()), objects, render(sample.common()))

        megatron.checkpointing.remove_sharded_tensors(path, hint)
        self.assertEqual([file.name for file in path.glob("*.distcp") if file.name.startswith(hint)], [])
        rest = {key: tensor for key, tensor in sample.tensors().items() if not key.startswith(hint)}
        self.check_all(path, torch_peer.digests(rest), objects, render(sample.common()))
        self.assertEqual(tool.digests(path).keys(), rest.keys())

    def test_goldens_from_which_the_tool_removed_a_prefix(self):
        """The metadata, as their own classes, have lost what belongs to these keys and nothing else."""
        for name in tool.goldens("mcore"):
            with self.subTest(name):
                path = self.folder / name
                shutil.copytree(tool.GOLDENS / name / "ckpt", path)
                before = unpickled(path)
                prefix = next(iter(before.state_dict_metadata))[:10]
                tool.run("remove", path, "--prefix", prefix)
                after = unpickled(path)
                self.assertEqual(vars(after), vars(without(before, prefix)))
                tool.run("verify", path, "--deep")


class Unpickler(pickle.Unpickler):
    """Takes namespaces, which compare by their attributes, for Megatron's own classes: other releases lack them."""

    def find_class(self, module: str, name: str):
        return types.SimpleNamespace if module.startswith("megatron.") else super().find_class(module, name)


def unpickled(path: pathlib.Path):
    with open(path / ".metadata", "rb") as file:
        return Unpickler(file).load()


def without(metadata, prefix: str):
    """A copy of DCP's metadata that never had the keys."""
    def kept(mapping):
        return mapping and {key: value for key, value in mapping.items() if not getattr(key, "fqn", key).startswith(prefix)}

    metadata = copy.copy(metadata)
    for field in ("state_dict_metadata", "planner_data", "storage_data", "mcore_data"):
        if hasattr(metadata, field):
            setattr(metadata, field, kept(getattr(metadata, field)))
    if hasattr(metadata, "all_local_plans"):
        plans = [copy.copy(plan) for plan in metadata.all_local_plans]
        for plan in plans:
            object.__setattr__(plan, "items", [item for item in plan.items if not item.index.fqn.startswith(prefix)])
            for field in ("planner_data", "mcore_data"):
                if hasattr(plan, field):
                    object.__setattr__(plan, field, kept(getattr(plan, field)))
        metadata.all_local_plans = plans
    return metadata


class MegatronReadsParts(unittest.TestCase):
    """Ranks that want other parts than were saved."""

    def load_in_ranks(self, size: int, flattened: str, shard, wanted):
        """Every rank loads shard(rank), which must equal wanted(rank)."""
        with tempfile.TemporaryDirectory() as folder:
            path = save_sample(pathlib.Path(folder), flattened)

            def load(rank: int) -> None:
                loaded = megatron.checkpointing.load({"part": shard(rank)}, str(path))
                assert torch.equal(loaded["part"], wanted(rank)), f"rank {rank}: {loaded['part']} instead of {wanted(rank)}"

            run_ranks(size, load)

    def test_columns_of_rows(self):
        self.load_in_ranks(3, "boxes", lambda rank: ShardedTensor.from_rank_offsets("rows", torch.empty(8, 2), (1, rank, 3)),
                           lambda rank: sample.tensors()["rows"][:, 2 * rank:2 * rank + 2])

    def test_layers(self):
        self.load_in_ranks(2, "boxes",
                           lambda rank: ShardedTensor.from_rank_offsets("layers.weight", torch.empty(2, 3, 2, dtype=torch.bfloat16), (0, rank, 2)),
                           lambda rank: sample.tensors()["layers.weight"][2 * rank:2 * rank + 2])

    @unittest.skipUnless(megatron.HAS_FLATTENED, "this release reads no flattened tensors")
    def test_flattened_ranges(self):
        key = "optimizer.state.exp_avg.decoder.weight"
        bounds = [(0, 0, 7), (0, 7, 12), (1, 0, 1), (1, 1, 12), (2, 0, 12), (3, 0, 12)]     # rows rank, begin, end: four pieces of two rows

        def shard(rank: int) -> ShardedTensor:
            piece, begin, end = bounds[rank]
            return ShardedTensor.from_rank_offsets_flat(key, torch.empty(end - begin), (2, 6), (0, piece, 4), flattened_range=slice(begin, end))

        def wanted(rank: int) -> torch.Tensor:
            piece, begin, end = bounds[rank]
            return sample.tensors()[key][2 * piece:2 * piece + 2].flatten()[begin:end]

        self.load_in_ranks(len(bounds), "megatron", shard, wanted)
