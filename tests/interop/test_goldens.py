"""Every golden checkpoint, read by the tool, holds what its producer had in memory."""

import tempfile
import unittest

import tool
from rendering import difference


def each():
    for name in tool.goldens("mcore", "dcp", "zarr", "safetensors", "local", "tc"):
        yield name, tool.GOLDENS / name / "ckpt", tool.expected(name)


class Goldens(unittest.TestCase):
    maxDiff = 4000

    def test_tensors(self):
        for name, path, expected in each():
            with self.subTest(name):
                self.assertEqual(tool.digests(path), tool.wanted_digests(expected))

    def test_tensors_of_joined_ranks(self):
        for name in tool.goldens("legacy"):
            with self.subTest(name):
                self.assertEqual(tool.digests(tool.GOLDENS / name / "ckpt"),
                                 tool.wanted_digests(tool.expected(name)))

    def test_objects(self):
        for name, path, expected in each():
            objects = expected["objects"]
            if name == "tc-0.1-safetensors":  # only its file, blobs/0.bin, names this item
                objects["blobs"] = objects.pop("blob")
            with self.subTest(name):
                self.assertIsNone(difference(tool.objects(path), objects))

    def test_common_state(self):
        for name, path, expected in each():
            if expected["common"]:
                with self.subTest(name):
                    self.assertIsNone(difference(tool.common(path), expected["common"]))

    def test_verify_finds_no_fault(self):
        for name, path, _ in each():
            with self.subTest(name):
                tool.run("verify", "--deep", path)

    def test_optimizers_become_reshardable(self):
        """Under the keys of fully_reshardable, whole, with the values of the flattened state."""
        names = [name for name in tool.goldens("mcore") if "flattened" in name]
        self.assertGreater(len(names), 5)
        for name in names:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                tool.run("convert", tool.GOLDENS / name / "ckpt", f"{folder}/new",
                         "--optimizer", "fully_reshardable")
                wanted = tool.wanted_digests(tool.expected(name))
                state = "optimizer.state."
                self.assertEqual(
                    tool.digests(f"{folder}/new"),
                    {key.replace(f"{state}fp32_param.", f"{state}param."): value
                     for key, value in wanted.items()})
