"""The library safetensors loads what convert writes, and the tool reads what it writes: every element type, scalars, empty tensors, odd keys; and their files are the same byte for byte."""

from __future__ import annotations

import hashlib
import json
import pathlib
import tempfile
import unittest

import safetensors.torch
import torch

import tool

DTYPES = [torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
          torch.complex64, torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.float4_e2m1fn_x2]


def tensors() -> dict[str, torch.Tensor]:
    made = {str(dtype): torch.arange(12 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(3, 4) if dtype != torch.bool else torch.tensor([True, False]) for dtype in DTYPES}
    return made | {"scalar": torch.tensor(1.5), "empty": torch.empty(0, 3), "b.long": torch.arange(5000), "b": torch.ones(2, 2, dtype=torch.bfloat16)}


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()


def load(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    return {key: tensor for file in sorted(folder.glob("*.safetensors")) for key, tensor in safetensors.torch.load_file(file).items()}


class Safetensors(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_a_file_is_read_and_written_again_byte_for_byte(self):
        saved = tensors()
        source = self.root / "source" / "model.safetensors"
        source.parent.mkdir()
        safetensors.torch.save_file(saved, source, metadata={"format": "pt"})
        for path in source, source.parent:
            self.assertEqual({key: value["sha256"] for key, value in tool.digests(path).items()}, {key: digest(value) for key, value in saved.items()})
        tool.run("convert", source.parent, self.root / "copy", "--to", "hf")
        self.assertEqual((self.root / "copy" / "model.safetensors").read_bytes(), source.read_bytes())
        safetensors.torch.save_file({"clé ✓": torch.ones(1)}, self.root / "odd.safetensors")
        self.assertEqual(list(tool.digests(self.root / "odd.safetensors")), ["clé ✓"])

    def test_sharded_files_of_a_megatron_checkpoint(self):
        for name in "mcore-0.16-fully-reshardable-tp2pp2dp2", "mcore-0.14-flattened-tp2pp2dp2", "dcp-fsdp2-tp":
            with self.subTest(name):
                source, copy = tool.GOLDENS / name / "ckpt", self.root / name
                policy = self.root / "policy.yaml"
                policy.write_text("version: 1\nsave: {backend: {name: hf, options: {max_file_size: 4KiB}}}\n")
                tool.run("convert", source, copy, "--policy", policy, "--map", "none", "--include", "*")
                loaded, wanted = load(copy), tool.wanted_digests(tool.expected(name))
                self.assertEqual({key: digest(value) for key, value in loaded.items()}, {key: value["sha256"] for key, value in wanted.items()})
                index = json.loads((copy / "model.safetensors.index.json").read_text())
                self.assertEqual(index["metadata"]["total_size"], sum(tensor.nbytes for tensor in loaded.values()))
                self.assertEqual(set(index["weight_map"]), set(loaded))
                self.assertGreater(len(set(index["weight_map"].values())), 1)
                self.assertEqual(tool.digests(copy), wanted)
                tool.run("convert", copy, self.root / f"{name}-back", "--to", "torch_dist", "--ranks", "3")
                self.assertEqual(tool.digests(self.root / f"{name}-back"), wanted)
