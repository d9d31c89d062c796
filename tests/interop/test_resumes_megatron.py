"""A training run that changes the release of Megatron-Core in its midst, through `convert --optimizer`, goes on as if nothing had happened."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tool

HERE = pathlib.Path(__file__).parent


@unittest.skipUnless("DCKPT_MCORE_0_14" in os.environ, "DCKPT_MCORE_0_14 names no folder with megatron-core")
class ResumesMegatron(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, release: str, **job) -> list[float]:
        """Losses of the steps."""
        losses = self.folder / "losses.json"
        done = subprocess.run([sys.executable, "-W", "ignore", HERE / "train_gpt.py", json.dumps({**job, "losses": str(losses)})],
                              env={**os.environ, "PYTHONPATH": os.environ[f"DCKPT_MCORE_{release}"]}, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(done.stderr[-4000:])
        return json.loads(losses.read_text())

    def convert(self, name: str, optimizer: str) -> str:
        made = self.folder / f"{name}-{optimizer}"
        tool.run("convert", self.folder / name, made, "--optimizer", optimizer, "--ranks", "3")
        return str(made)

    def test_from_0_14_to_0_16_and_back(self):
        whole = self.train("0_14", ranks=2, tensor=1, first=0, steps=4, save=str(self.folder / "old"), save_after=2)
        resumed = self.train("0_16", ranks=2, tensor=2, load=self.convert("old", "fully_reshardable"), first=2, steps=2, save=str(self.folder / "new"), save_after=3)
        back = self.train("0_14", ranks=1, tensor=1, load=self.convert("new", "fully_sharded_model_space"), first=3, steps=1)
        for losses, wanted in ((resumed, whole[2:]), (back, whole[3:])):
            for loss, other in zip(losses, wanted, strict=True):
                self.assertAlmostEqual(loss, other, delta=1e-5)     # another layout adds in another order

    def test_a_chain_of_optimizers_from_0_14_goes_on_in_0_16(self):
        model = {"dtype": "bfloat16", "experts": 4, "expert": 2, "tensor": 1}
        whole = self.train("0_14", **model, ranks=4, first=0, steps=4, save=str(self.folder / "flat"), save_after=2)
        losses = self.train("0_16", **model, ranks=2, load=self.convert("flat", "fully_reshardable"), first=2, steps=2)
        for loss, other in zip(losses, whole[2:], strict=True):
            self.assertAlmostEqual(loss, other, delta=1e-5)

    def test_state_in_buckets_goes_on_under_another_layout(self):
        """Of a dense model whose main parameters are its own, and of one with experts, a chain of optimizers, that has them rounded."""
        dense = {"dtype": "float32"}
        experts = {"dtype": "bfloat16", "experts": 4, "expert": 2}
        for model, saved, resumed in ((dense, {"ranks": 4, "tensor": 2}, {"ranks": 2, "tensor": 1}), (experts, {"ranks": 4, "tensor": 1}, {"ranks": 2, "tensor": 1})):
            with self.subTest(**model):
                name = model["dtype"]
                whole = self.train("0_16", **model, **saved, first=0, steps=4, sharding="dp_reshardable", save=str(self.folder / name), save_after=2)
                losses = self.train("0_16", **model, **resumed, load=self.convert(name, "fully_reshardable"), first=2, steps=2)
                for loss, other in zip(losses, whole[2:], strict=True):
                    self.assertAlmostEqual(loss, other, delta=1e-5)     # another layout adds in another order
