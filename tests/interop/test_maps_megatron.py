"""Maps make of models of Hugging Face what Megatron-Core asks for: the order of rows that its interleaved rotary embeddings turn together."""

from __future__ import annotations

import json
import pathlib
import tempfile
import unittest
import unittest.mock

import numpy
import safetensors.torch
import torch
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd as rotate
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

import tool

HEADS, GROUPS, DIM, HIDDEN, LENGTH = 4, 2, 8, 16, 12


class Maps(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.enterContext(unittest.mock.patch("torch.cuda.current_device", lambda: "cpu"))     # Megatron builds its embeddings there

    def test_interleaved_rotary_embeddings_give_the_same_attention(self):
        rows = {"q_proj": HEADS * DIM, "k_proj": GROUPS * DIM, "v_proj": GROUPS * DIM}
        layer = {f"self_attn.{name}": torch.randn(count, HIDDEN) for name, count in rows.items()}
        layer |= {"self_attn.o_proj": torch.randn(HIDDEN, HEADS * DIM), "input_layernorm": torch.randn(HIDDEN), "post_attention_layernorm": torch.randn(HIDDEN)}
        layer |= {"mlp.gate_proj": torch.randn(24, HIDDEN), "mlp.up_proj": torch.randn(24, HIDDEN), "mlp.down_proj": torch.randn(HIDDEN, 24)}
        tensors = {f"model.layers.0.{name}.weight": value for name, value in layer.items()}
        tensors |= {"model.embed_tokens.weight": torch.randn(128, HIDDEN), "model.norm.weight": torch.randn(HIDDEN), "lm_head.weight": torch.randn(128, HIDDEN)}
        config = dict(model_type="llama", num_hidden_layers=1, hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=GROUPS, head_dim=DIM, vocab_size=128)
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "model").mkdir()
            safetensors.torch.save_file(tensors, root / "model" / "model.safetensors", {"format": "pt"})
            (root / "model" / "config.json").write_text(json.dumps(config))
            tool.run("convert", root / "model", root / "megatron", "--map", "auto", "--set", "rotary_interleaved=true", "--roundtrip-check")
            tool.run("extract", root / "megatron", "decoder.layers.self_attention.linear_qkv.weight", "-o", root / "qkv.npy")
            grouped = torch.from_numpy(numpy.load(root / "qkv.npy")).reshape(GROUPS, HEADS // GROUPS + 2, DIM, HIDDEN)
            tool.run("convert", root / "megatron", root / "back", "--map", "llama", "--set", "vocab_size=128")
            for key, value in safetensors.torch.load_file(root / "back" / "model.safetensors").items():
                self.assertTrue(torch.equal(value, tensors[key]), key)

        inputs = torch.randn(LENGTH, 1, HIDDEN)

        def scores(query: torch.Tensor, key: torch.Tensor, interleaved: bool) -> torch.Tensor:
            angles = RotaryEmbedding(kv_channels=DIM, rotary_percent=1.0, rotary_interleaved=interleaved, use_cpu_initialization=True)(LENGTH)
            turned = [rotate(torch.einsum("sbh,ndh->sbnd", inputs, weight), angles, rotary_interleaved=interleaved) for weight in (query, key)]
            return torch.einsum("sbnd,tbnd->bnst", turned[0], turned[1].repeat_interleave(HEADS // GROUPS, 2))

        stored = layer["self_attn.q_proj"].reshape(HEADS, DIM, HIDDEN), layer["self_attn.k_proj"].reshape(GROUPS, DIM, HIDDEN)
        made = grouped[:, :-2].reshape(HEADS, DIM, HIDDEN), grouped[:, -2]
        wanted = scores(*stored, interleaved=False)
        torch.testing.assert_close(scores(*made, interleaved=True), wanted, rtol=1e-4, atol=1e-4)
        self.assertFalse(torch.allclose(scores(*stored, interleaved=True), wanted, rtol=1e-2, atol=1e-2))
