"""transformers loads what convert writes for it: the folder of a model that was a checkpoint of three ranks in between, in several files, gives the same logits. So does a
model whose weights were float8 with a scale for each block, which become what transformers makes of them."""

from __future__ import annotations

import json
import pathlib
import shutil
import tempfile
import unittest

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
import transformers
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

import tool

CONFIG = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
MLA = dict(vocab_size=96, hidden_size=64, intermediate_size=96, moe_intermediate_size=32, num_hidden_layers=3, first_k_dense_replace=1, num_attention_heads=4,
           num_key_value_heads=4, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=4, n_group=4, topk_group=2, q_lora_rank=32, kv_lora_rank=32,
           qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16)
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
VISION = dict(depth=2, hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=32, patch_size=4)
TOWERS = {"qwen2_5_vl": ("Qwen2_5_VL", dict(window_size=16, fullatt_block_indexes=[1])),
          "qwen3_vl": ("Qwen3VL", dict(num_position_embeddings=16, deepstack_visual_indexes=[0]))}     # map → classes of transformers, vision_config
BLOCK = 16
LONGCAT = dict(vocab_size=96, hidden_size=32, num_layers=2, num_attention_heads=4, num_key_value_heads=4, ffn_hidden_size=48, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8,
               qk_rope_head_dim=8, head_dim=8, v_head_dim=8, qk_head_dim=16, moe_topk=2, n_routed_experts=4, zero_expert_num=2, expert_ffn_hidden_size=24, pad_token_id=0, bos_token_id=1,
               eos_token_id=2)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2)
FAMILIES = {"gemma": "Gemma", "gemma2": "Gemma2", "gemma3": "Gemma3", "phi3": "Phi3", "glm4": "Glm4", "nemotron": "Nemotron", "starcoder2": "Starcoder2", "olmo2": "Olmo2",
            "olmoe": "Olmoe", "exaone4": "Exaone4", "gpt_oss": "GptOss", "glm4_moe": "Glm4Moe", "minimax_m2": "MiniMaxM2", "gpt_neox": "GPTNeoX",
            "glm4_moe_lite": "Glm4MoeLite", "llama4": "Llama4", "nemotron_h": "NemotronH", "qwen3_next": "Qwen3Next", "ernie4_5": "Ernie4_5", "ernie4_5_moe": "Ernie4_5_Moe"}     # map → classes of transformers
MORE = {"gemma": dict(head_dim=16), "gemma2": dict(head_dim=16), "gemma3": dict(head_dim=16), "glm4": dict(head_dim=8, attention_bias=True), "olmoe": EXPERTS, "gpt_oss": dict(head_dim=8, num_local_experts=4, num_experts_per_tok=2),
        "glm4_moe": dict(head_dim=16, attention_bias=True, use_qk_norm=True, moe_intermediate_size=32, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=2),
        "minimax_m2": dict(head_dim=16, rotary_dim=8, num_local_experts=4, num_experts_per_tok=2), "gpt_neox": dict(num_key_value_heads=None),
        "glm4_moe_lite": {**MLA, "vocab_size": 96, "n_group": 1, "topk_group": 1},
        "llama4": dict(head_dim=16, intermediate_size_mlp=48, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2),
        "nemotron_h": dict(hybrid_override_pattern="ME*-", mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=2, head_dim=8, n_routed_experts=4,
                           moe_intermediate_size=24, moe_shared_expert_intermediate_size=32),
        "qwen3_next": dict(EXPERTS, layer_types=["linear_attention", "full_attention"], head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                           linear_value_head_dim=12, moe_intermediate_size=24, shared_expert_intermediate_size=32),
        "ernie4_5": dict(use_bias=True), "ernie4_5_moe": dict(moe_intermediate_size=24, moe_num_experts=4, moe_k=2, tie_word_embeddings=False)}
TYPES = {"gemma3": "gemma3_text", "llama4": "llama4_text"}      # of the text model


def quantise(folder: pathlib.Path, worth_folder: pathlib.Path) -> dict[str, torch.Tensor]:
    """Turns the weights of a model's linear layers into float8 with scales, as DeepSeek publishes them. Returns what they are worth, which goes to another folder."""
    stored, worth = {}, {}
    for key, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        stored[key] = worth[key] = tensor
        if "_proj" not in key or tensor.dim() != 2:
            continue
        rows, columns = tensor.shape
        blocks = tensor.float().reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        scales = blocks.abs().amax((1, 3), keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
        codes = (blocks / scales).to(torch.float8_e4m3fn)
        stored[key], stored[key + "_scale_inv"] = codes.reshape(rows, columns), scales.squeeze((1, 3)).contiguous()
        worth[key] = Fp8Dequantize(None)._dequantize_one(stored[key], stored[key + "_scale_inv"], torch.bfloat16)
    shutil.copytree(folder, worth_folder)
    for place, tensors in (folder, stored), (worth_folder, worth):
        safetensors.torch.save_file(tensors, place / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK])
    (folder / "config.json").write_text(json.dumps(config))
    return worth


class TrainersGpt2(torch.nn.Module):
    """GPT-2 of a trainer such as InfiniTrain: the names of transformers, but linear layers like torch's, whose weights are (out, in)."""

    def __init__(self, width: int, heads: int, layers: int, words: int, positions: int):
        super().__init__()
        nn, self.heads = torch.nn, heads
        block = lambda: nn.ModuleDict({"ln_1": nn.LayerNorm(width), "attn": nn.ModuleDict({"c_attn": nn.Linear(width, 3 * width), "c_proj": nn.Linear(width, width)}),
                                       "ln_2": nn.LayerNorm(width), "mlp": nn.ModuleDict({"c_fc": nn.Linear(width, 4 * width), "c_proj": nn.Linear(4 * width, width)})})
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(words, width), "wpe": nn.Embedding(positions, width), "h": nn.ModuleList(block() for _ in range(layers)), "ln_f": nn.LayerNorm(width)})

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        model = self.transformer
        x = model.wte(tokens) + model.wpe.weight[: tokens.shape[1]]
        for block in model.h:
            query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in block.attn.c_attn(block.ln_1(x)).chunk(3, -1))
            x = x + block.attn.c_proj(torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2))
            x = x + block.mlp.c_proj(torch.nn.functional.gelu(block.mlp.c_fc(block.ln_2(x)), approximate="tanh"))
        return model.ln_f(x) @ model.wte.weight.T


class Transformers(unittest.TestCase):
    def test_a_trainer_with_names_of_its_own_computes_the_same_both_ways(self):
        torch.manual_seed(3)
        tokens = torch.arange(1, 25).reshape(1, 24)
        maps = (pathlib.Path(__file__).parents[2] / "docs" / "maps.md").read_text()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            root = pathlib.Path(folder)
            (root / "infinitrain.yaml").write_text(maps.split("<!-- file: infinitrain.yaml -->\n```yaml\n")[1].split("```")[0])
            made = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=32, bos_token_id=0, eos_token_id=0)).eval()
            for tensor in made.state_dict().values():
                tensor.normal_(0, 0.3)
            made.save_pretrained(root / "model")
            tool.run("convert", root / "model", root / "start", "--to", "dcp", "--map", root / "infinitrain.yaml", "--roundtrip-check")
            trainer = TrainersGpt2(32, 4, 2, 96, 32).eval()
            state = trainer.state_dict()
            dcp.load(state, checkpoint_id=root / "start")
            trainer.load_state_dict(state)
            torch.testing.assert_close(trainer(tokens), made(tokens).logits, rtol=1e-5, atol=1e-5)
            for tensor in state.values():
                tensor.add_(torch.randn_like(tensor), alpha=0.1)        # training
            dcp.save(state, checkpoint_id=root / "trained")
            tool.run("convert", root / "trained", root / "back", "--to", "hf", "--map", root / "infinitrain.yaml", "--model-files", root / "model", "--roundtrip-check")
            back = transformers.AutoModelForCausalLM.from_pretrained(root / "back").eval()
            torch.testing.assert_close(back(tokens).logits, trainer(tokens), rtol=1e-5, atol=1e-5)
            self.assertFalse(torch.allclose(back(tokens).logits, made(tokens).logits, rtol=1e-2))

    def test_longcat_flash_comes_back(self):
        torch.manual_seed(7)
        tokens = torch.arange(1, 25).reshape(1, 24)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            root = pathlib.Path(folder)
            made = transformers.LongcatFlashForCausalLM(transformers.LongcatFlashConfig(**LONGCAT)).to(torch.bfloat16)
            for tensor in made.state_dict().values():
                tensor.normal_(0, 0.3)
            made.save_pretrained(root / "model")
            before = transformers.AutoModelForCausalLM.from_pretrained(root / "model", dtype=torch.bfloat16)(tokens).logits
            file = root / "model" / "model.safetensors"
            everything = safetensors.torch.load_file(file)      # transformers writes half of the experts that compute nothing, too, and requires it
            nothing = {key: tensor for key, tensor in everything.items() if any(f".experts.{number}." in key for number in (4, 5))}
            safetensors.torch.save_file({key: tensor for key, tensor in everything.items() if key not in nothing}, file, {"format": "pt"})
            longcat = pathlib.Path(__file__).parent / "longcat_flash.yaml"
            tool.run("convert", root / "model", root / "trainer", "--to", "dcp", "--map", longcat, "--roundtrip-check")
            tool.run("convert", root / "trainer", root / "back", "--to", "hf", "--map", longcat, "--model-files", root / "model")
            tool.run("diff", root / "back", root / "model")
            file = root / "back" / "model.safetensors"
            safetensors.torch.save_file(safetensors.torch.load_file(file) | nothing, file, {"format": "pt"})
            self.assertTrue(torch.equal(transformers.AutoModelForCausalLM.from_pretrained(root / "back", dtype=torch.bfloat16)(tokens).logits, before))

    def test_float8_weights_are_worth_what_transformers_makes_of_them(self):
        torch.manual_seed(2)
        tokens = torch.arange(1, 25).reshape(1, 24)
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            root = pathlib.Path(folder)
            transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**MLA)).to(torch.bfloat16).save_pretrained(root / "model")
            worth = quantise(root / "model", root / "worth")
            tool.run("convert", root / "model", root / "megatron", "--map", "auto", "--max-memory", "4MiB", "--roundtrip-check")
            tool.run("convert", root / "megatron", root / "back", "--map", "deepseek_v3", "--set", "vocab_size=96", "--model-files", root / "model")
            back = safetensors.torch.load_file(root / "back" / "model.safetensors")
            self.assertEqual(set(back), set(worth))
            for key, value in worth.items():
                self.assertTrue(torch.equal(back[key], value), key)
            before, after = (transformers.AutoModelForCausalLM.from_pretrained(root / side, dtype=torch.bfloat16)(tokens).logits for side in ("worth", "back"))
            self.assertTrue(torch.equal(before, after))

    def test_models_of_many_families_come_back(self):
        tokens = torch.arange(1, 25).reshape(1, 24)
        for family, name in FAMILIES.items():
            with self.subTest(family), tempfile.TemporaryDirectory() as folder, torch.no_grad():
                torch.manual_seed(4)
                root = pathlib.Path(folder)
                config = transformers.AutoConfig.for_model(TYPES.get(family, family), **{**CONFIG, **MORE.get(family, {})}, pad_token_id=0, bos_token_id=1, eos_token_id=2)
                made = getattr(transformers, name + "ForCausalLM")(config).to(torch.bfloat16)
                for key, tensor in made.state_dict().items():
                    if key.endswith("linear_attn.norm.weight"):
                        tensor.uniform_(0.6, 1.9)       # Megatron has 1 less, which bfloat16 holds
                    else:
                        tensor.normal_(0, 0.3)          # norms and biases of routers too, which are equal otherwise
                made.save_pretrained(root / "model")
                tool.run("convert", root / "model", root / "megatron", "--map", "auto", "--ranks", "3", "--roundtrip-check")
                tool.run("convert", root / "megatron", root / "back", "--map", family, "--set", "vocab_size=96", "--model-files", root / "model")
                tool.run("diff", root / "back", root / "model")
                before, after = (transformers.AutoModelForCausalLM.from_pretrained(root / side, dtype=torch.bfloat16)(tokens).logits for side in ("model", "back"))
                self.assertTrue(torch.equal(before, after))

    def test_models_of_text_and_images_come_back(self):
        torch.manual_seed(6)
        words = torch.tensor([[3, 90, 91, 91, 91, 91, 92, 5, 6]])      # four of an image, which is 4 × 4 patches
        image = dict(pixel_values=torch.randn(16, 96), image_grid_thw=torch.tensor([[1, 4, 4]]), mm_token_type_ids=(words == 91).int())
        for family, (name, vision) in TOWERS.items():
            with self.subTest(family), tempfile.TemporaryDirectory() as folder, torch.no_grad():
                root = pathlib.Path(folder)
                text = dict(CONFIG, head_dim=8, rope_parameters=ROPE, pad_token_id=0, bos_token_id=1, eos_token_id=2)
                config = getattr(transformers, name + "Config")(text_config=text, vision_config={**VISION, **vision}, vision_start_token_id=90, image_token_id=91, vision_end_token_id=92,
                                                                tie_word_embeddings=False)
                made = getattr(transformers, name + "ForConditionalGeneration")(config).to(torch.bfloat16)
                for tensor in made.state_dict().values():
                    tensor.normal_(0, 0.3)
                made.save_pretrained(root / "model")
                tool.run("convert", root / "model", root / "megatron", "--map", "auto", "--ranks", "3", "--roundtrip-check")
                tool.run("convert", root / "megatron", root / "back", "--map", family, "--set", "vocab_size=96", "--model-files", root / "model")
                tool.run("diff", root / "back", root / "model")
                before, after = (transformers.AutoModelForImageTextToText.from_pretrained(root / side, dtype=torch.bfloat16) for side in ("model", "back"))
                with_image = before(words, **image).logits
                self.assertTrue(torch.equal(with_image, after(words, **image).logits))
                self.assertTrue(torch.equal(before(words[:, -2:]).logits, after(words[:, -2:]).logits))
                after.model.visual.merger.load_state_dict({key: tensor.neg() for key, tensor in after.model.visual.merger.state_dict().items()})
                self.assertFalse(torch.equal(with_image, after(words, **image).logits))       # so the tower matters

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
