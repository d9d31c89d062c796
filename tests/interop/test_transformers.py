"""transformers loads what convert writes for it: the folder of a model that was a checkpoint of three ranks in between, in several files, gives the same logits."""

from __future__ import annotations

import json
import pathlib
import tempfile
import unittest

import torch
import transformers

import tool

CONFIG = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


class Transformers(unittest.TestCase):
    def test_a_model_comes_back(self):
        torch.manual_seed(1)
        tokens = torch.arange(1, 25).reshape(1, 24)
        for dtype in torch.float32, torch.bfloat16:
            with self.subTest(dtype), tempfile.TemporaryDirectory() as folder, torch.no_grad():
                root = pathlib.Path(folder)
                made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG)).to(dtype)
                made.save_pretrained(root / "model", max_shard_size="30KB")
                self.assertTrue((root / "model" / "model.safetensors.index.json").exists())
                tool.run("convert", root / "model", root / "megatron", "--to", "torch_dist", "--ranks", "3")
                (root / "policy.yaml").write_text("version: 1\nsave: {backend: {name: hf, options: {max_file_size: 20KiB}}}\n")
                tool.run("convert", root / "megatron", root / "back", "--policy", root / "policy.yaml", "--model-files", root / "model")
                names = [json.loads((root / side / "model.safetensors.index.json").read_text())["weight_map"] for side in ("model", "back")]
                self.assertEqual(set(names[0]), set(names[1]))
                before, after = (transformers.AutoModelForCausalLM.from_pretrained(root / side, dtype=dtype)(tokens).logits for side in ("model", "back"))
                self.assertTrue(torch.equal(before, after))
