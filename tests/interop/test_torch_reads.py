"""What the tool converts and what the library saves is loaded by PyTorch's own reader, and equals what the producers had."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import sample
import tool
import torch
import torch.distributed.checkpoint as dcp
import torch_peer
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from rendering import difference, render


def unwrapped(path: pathlib.Path, key: str, value):
    """Megatron stores [object] under "key/shard_…", a plain DCP directory the object itself."""
    return value[0] if "/shard_" in key and (path / "metadata.json").exists() else value


def element(tree, path: tuple):
    for step in path:
        tree = tree[step] if isinstance(tree, list) else next(value for key, value in tree.items() if str(key) == step)
    return tree


def load_nested(path: pathlib.Path) -> dict:
    """The state dict as it was nested, by planner_data: what torch's own dcp_to_torch_save does."""
    state = {}
    _load_state_dict(state, storage_reader=FileSystemReader(path), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


class TorchReads(unittest.TestCase):
    maxDiff = 4000

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def convert(self, name: str, *options: str) -> pathlib.Path:
        path = self.folder / f"{name}-{'-'.join(options)}"
        tool.run("convert", tool.GOLDENS / name / "ckpt", path, *options)
        return path

    def check_content(self, path: pathlib.Path, expected: dict):
        """Tensors and objects through torch, and tensors through the tool again."""
        tensors, objects = torch_peer.load_all(path)
        common = objects.pop("common_state/shard_0_1", None)
        for key, place in getattr(torch_peer.read_metadata(path), "dckpt_common_paths", {}).items():
            if key in objects:  # in DCP's directories
                self.assertIsNone(difference(render(objects.pop(key)), render(element(common, place))))
        self.assertEqual(torch_peer.digests(tensors), tool.wanted_digests(expected))
        self.assertEqual(tool.digests(path), tool.wanted_digests(expected))
        self.assertIsNone(difference({key: render(unwrapped(path, key, value)) for key, value in objects.items()}, expected["objects"]))

    def test_torch_dist_cut_anew(self):
        for name in tool.goldens("mcore", "zarr"):
            with self.subTest(name):
                expected = tool.expected(name)
                path = self.folder / name
                tool.run("convert", self.convert(name, "--to", "dcp"), path, "--to", "torch_dist", "--compat", "megatron", "--ranks", "3")
                self.check_content(path, expected)
                self.assertIsNone(difference(render(torch_peer.unpickle(path / "common.pt")), expected["common"]))
                tool.run("verify", "--deep", path)

    def test_torch_dist_to_dcp(self):
        for name in tool.goldens("mcore", "zarr"):
            with self.subTest(name):
                path = self.convert(name, "--to", "dcp", "--ranks", "2")
                self.check_content(path, tool.expected(name))
                self.assertFalse((path / "metadata.json").exists())

    def test_a_trainer_resumes_by_dcp_load(self):
        """get_state_dict() and plain values beside it, as a trainer without Megatron saves them, on their way through the formats."""
        state = self.trained(steps=3)
        torch.save(state, self.folder / "saved.pt")
        for formats in (["dcp"], ["zarr", "dcp"], ["torch_dist", "dcp", "dcp"]):
            with self.subTest(formats):
                path = self.folder / "saved.pt"
                for to in formats:
                    tool.run("convert", path, path := self.folder / f"{path.name}-{to}", "--to", to)
                loaded = self.trained(steps=1)
                loaded |= {"epoch": 0, "meta": {"name": "", "sizes": [0, 0], "empty": {}, "none": None}}
                dcp.load(loaded, checkpoint_id=path, no_dist=True)
                self.assertIsNone(difference(render(loaded), render(state)))
                nested = load_nested(path)
                nested.pop("common_state/shard_0_1", None)
                self.assertIsNone(difference(render(nested), render(state)))

    def trained(self, steps: int) -> dict:
        torch.manual_seed(steps)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * steps, betas=(0.8, 0.95))
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).sum().backward()
            optimizer.step()
        weights, moments = get_state_dict(model, optimizer)
        return {"model": dict(weights), "optim": moments, "epoch": steps, "meta": {"name": "run", "sizes": [1, 2], "empty": {}, "none": None}}

    def test_dcp_comes_back_from_torch_dist(self):
        for name in tool.goldens("dcp"):
            if "torch2.15" in name:  # whose metadata this torch cannot read
                continue
            if "fsdp-dtensor" in name:  # which gets Megatron-Core's keys
                continue
            with self.subTest(name):
                megatron = self.folder / "megatron" / name
                back = self.folder / "back" / name
                tool.run("convert", tool.GOLDENS / name / "ckpt", megatron, "--to", "torch_dist")
                tool.run("convert", megatron, back, "--to", "dcp")
                tool.run("diff", tool.GOLDENS / name / "ckpt", back)
                if name != "dcp-not-flattened":  # which comes back flattened
                    self.assertEqual(torch_peer.read_metadata(back).planner_data, torch_peer.read_metadata(tool.GOLDENS / name / "ckpt").planner_data)
                self.assertIsNone(difference(render(load_nested(back)), render(load_nested(tool.GOLDENS / name / "ckpt"))))

    def test_flattened_form_is_kept(self):
        for name in [name for name in tool.goldens("mcore") if "flattened" in name or "bucket-space" in name]:
            with self.subTest(name):
                expected = tool.expected(name)
                path = self.convert(name, "--ranks", "3", "--flattened", "megatron")
                self.assertEqual(tool.digests(path), tool.wanted_digests(expected))
                self.assertIsNone(difference(tool.objects(path), expected["objects"]))

    def test_newer_megatron_form(self):
        for name in tool.goldens("mcore"):
            if not name.startswith("mcore-head"):
                continue
            with self.subTest(name):
                path = self.convert(name, "--compat", "megatron-0.19", "--ranks", "2")
                _, objects = torch_peer.load_all(path)
                self.assertIsNone(difference(render(objects["common_state/shard_0_1"][0]), tool.expected(name)["common"]))
                self.assertFalse((path / "common.pt").exists())

    def test_a_tensor_of_which_each_replica_wrote_a_part(self):
        for compat in ("megatron", "dcp"):
            with self.subTest(compat):
                path = self.folder / compat
                subprocess.run([os.environ["DCKPT_SAVE_SAMPLE"], path, compat, "boxes", "", "2", "split"], check=True, timeout=120)
                metadata = torch_peer.read_metadata(path)
                self.assertEqual([tuple(chunk.sizes) for chunk in metadata.state_dict_metadata["large"].chunks], [(1024, 2080)] * 2)
                self.assertEqual(len({place.relative_path for index, place in metadata.storage_data.items() if index.fqn == "large"}), 2)
                tensors, _ = torch_peer.load_all(path)
                self.assertTrue(torch.equal(tensors["large"].view(torch.uint8), sample.pattern(100, "float32", (2048, 2080)).view(torch.uint8)))

    def test_a_state_that_is_not_flattened(self):
        path = self.folder / "unflattened"
        subprocess.run([os.environ["DCKPT_SAVE_SAMPLE"], path, "dcp", "unflattened"], check=True, timeout=120)
        metadata = torch_peer.read_metadata(path)
        self.assertEqual(sorted(metadata.state_dict_metadata), ["model", "plain", "rows", "step"])
        self.assertIsNone(metadata.planner_data)
        state = {"model": None, "plain": torch.zeros(6, dtype=torch.int32), "rows": torch.zeros(8, 6), "step": 0}
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)  # else it fills a copy of the dict
        dcp.load(state, checkpoint_id=path, planner=planner, no_dist=True)
        self.assertEqual(state["step"], 7)
        self.assertEqual(state["model"]["blocks"][1], "text")
        for number, (loaded, dtype, shape) in enumerate([(state["model"]["w"], "float32", (3, 4)), (state["model"]["blocks"][0], "bfloat16", (5,)),
                                                         (state["plain"], "int32", (6,)), (state["rows"], "float32", (8, 6))]):
            self.assertTrue(torch.equal(loaded.view(torch.uint8), sample.pattern(number, dtype, shape).view(torch.uint8)), number)

    def test_dcp_cut_anew(self):
        for name in tool.goldens("dcp"):
            with self.subTest(name):
                expected = tool.expected(name)
                path = self.convert(name, "--ranks", "3")
                self.check_content(path, expected)
                self.assertEqual(torch_peer.read_metadata(path).planner_data, {key: tuple(place) for key, place in expected["trees"].items()})

    def test_saved_by_the_library(self):
        for compat in ("megatron", "megatron-0.19", "dcp"):
            with self.subTest(compat):
                path = self.folder / compat
                subprocess.run([os.environ["DCKPT_SAVE_SAMPLE"], path, compat, "boxes"], check=True, timeout=120)
                tensors, objects = torch_peer.load_all(path)
                wanted = {key: t for key, t in sample.tensors().items()}
                if compat == "dcp":
                    wanted |= {"common_tensor": sample.common()["common_tensor"]}
                self.assertEqual(torch_peer.digests(tensors), torch_peer.digests(wanted))
                self.assertEqual(tool.digests(path), torch_peer.digests(wanted))
                for key, value in sample.objects().items():
                    self.assertIsNone(difference(render(unwrapped(path, key, objects[key])), render(value)))
                common = sample.common()
                if compat == "megatron":
                    self.assertIsNone(difference(render(torch_peer.unpickle(path / "common.pt")), render(common)))
                elif compat == "megatron-0.19":
                    self.assertIsNone(difference(render(objects["common_state/shard_0_1"][0]), render(common)))
                tool.run("verify", "--deep", path)

    def test_megatron_fsdp_finds_its_state(self):
        """In fsdp_dtensor the parts of each tensor have keys of their own, and Megatron-Core's optimizer takes the groups' options."""
        from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

        name = "mcore-0.16-fully-reshardable-tp2pp2dp2"
        state = load_nested(self.convert(name, "--to", "fsdp_dtensor", "--ranks", "3"))
        self.assertEqual((state["iteration"], state["checkpoint_version"], state["args"].num_layers), (10, 3.0, 2))
        model, optimizer, wrappers = state["model"], state["optimizer"], "module.module.module."

        def whole(key: str, part) -> torch.Tensor:
            """A tensor of torch_dist from its layers and halves; `part` gives one of them."""
            halves = ("_w", "_v") if key.endswith("linear_fc1.weight") else ("",)
            if ".layers." not in key:
                return part(key)
            return torch.stack([torch.cat([part(key.replace(".layers.", f".layers.{layer}.") + half) for half in halves]) for layer in range(2)])

        expected = tool.wanted_digests(tool.expected(name))
        keys = [key for key in expected if not key.startswith("optimizer.")]
        for key in keys:
            made = {"param": whole(key, lambda k: model["module." + k])}
            for moment in "exp_avg", "exp_avg_sq":
                made[moment] = whole(key, lambda k: optimizer["state"][wrappers + k][moment])
            for which, tensor in made.items():
                self.assertEqual(torch_peer.digests({key: tensor})[key], expected[f"optimizer.state.{which}.{key}"])

        meta = optimizer["param_to_group_meta"]
        vectors = [key for key in meta if key.endswith("bias") or "layernorm" in key or "layer_norm" in key]
        groups = [{"params": [key for key in meta if key not in vectors]}, {"params": vectors}]
        self.assertEqual(len(meta), len(keys) + sum(".layers." in key for key in keys))
        run = type("Run", (), {"_param_name": staticmethod(lambda key: key)})()
        made = DistributedOptimizer._param2group_meta_to_param_groups(run, meta, groups)    # raises if options differ in a group
        self.assertEqual([(group["wd_mult"], group["step"]) for group in made], [(1.0, 2), (0.0, 2)])
