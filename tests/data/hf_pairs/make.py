"""Makes the pairs ernie4_5, ernie4_5_moe and llama_nemotron in the current folder (PYTHONPATH: transformers 5.23.0 and megatron-core 0.16.1; torch 2.11.0).

ERNIE: transformers writes hf/; the tensors are put into Megatron's layout here, and DCP writes them. llama_nemotron: transformers has no class for it. hf/ has the keys of
NVIDIA's modeling_decilm.py, and a real GPTModel with get_gpt_heterogeneous_layer_spec writes mcore/. `nemotron_logits` computes what config.json means; Megatron's logits
must be the same."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import unittest.mock

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.nn import functional as F

VOCAB, PADDED = 100, 128
PRODUCER = {"transformers": "5.23.0", "torch": torch.__version__.split("+")[0], "megatron_core": None}


def qkv(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, groups: int) -> torch.Tensor:
    return torch.cat([part.reshape(groups, -1, part.shape[-1]) for part in (query, key, value)], 1).reshape(-1, query.shape[-1])


def padded(tensor: torch.Tensor) -> torch.Tensor:
    return F.pad(tensor, (0, 0, 0, PADDED - VOCAB))


def random_weights(shape: tuple[int, ...] | torch.Size, is_norm: bool) -> torch.Tensor:
    return (torch.rand(shape) + 0.5 if is_norm else torch.randn(shape) * 0.3).bfloat16()


def describe(family: str, layout: str, producer: dict, **numbers) -> None:
    pair = dict(family=family, names="te", layout=layout, dtype="bfloat16", producer=producer, saved_with=dict(tp=1, pp=1, ep=1, world=1), numbers=numbers)
    pathlib.Path(family, "pair.json").write_text(json.dumps(pair, indent=1))


def common(**args) -> dict:
    base = dict(group_query_attention=True, padded_vocab_size=PADDED, vocab_size=None, make_vocab_size_divisible_by=128, tensor_model_parallel_size=1,
                pipeline_model_parallel_size=1, untie_embeddings_and_output_weights=True, swiglu=True, normalization="RMSNorm", apply_layernorm_1p=False)
    return {"args": argparse.Namespace(**base, **args), "checkpoint_version": 3.0, "iteration": 10}


def ernie(family: str, moe: bool) -> None:
    import transformers
    layers, hidden, groups, experts = 3, 32, 2, 4
    base = dict(vocab_size=VOCAB, hidden_size=hidden, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=groups, head_dim=16,
                max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    if moe:
        base |= dict(moe_intermediate_size=16, moe_num_experts=experts, moe_k=2, moe_num_shared_experts=2, moe_layer_start_index=1)
    else:
        base |= dict(use_bias=True)
    config = transformers.AutoConfig.for_model(family, **base)
    model = transformers.AutoModelForCausalLM.from_config(config).bfloat16()
    for name, tensor in model.named_parameters():
        tensor.data = random_weights(tensor.shape, "norm" in name)
        if "moe_statics" in name or name.endswith("mlp.gate.weight"):
            tensor.data = tensor.data.float() + torch.rand(tensor.shape) / 1024      # float32 in the published files
    model.save_pretrained(f"{family}/hf")
    os.remove(f"{family}/hf/generation_config.json")
    hf = safetensors.torch.load_file(f"{family}/hf/model.safetensors")

    made = {"embedding.word_embeddings.weight": padded(hf["model.embed_tokens.weight"]), "output_layer.weight": padded(hf["lm_head.weight"]),
            "decoder.final_layernorm.weight": hf["model.norm.weight"]}
    for layer in range(layers):
        at, to = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        attention, mlp = at + "self_attn.", at + "mlp."
        made[to + "self_attention.linear_qkv.layer_norm_weight"] = hf[at + "input_layernorm.weight"]
        made[to + "self_attention.linear_qkv.weight"] = qkv(*(hf[f"{attention}{part}_proj.weight"] for part in "qkv"), groups)
        made[to + "self_attention.linear_proj.weight"] = hf[attention + "o_proj.weight"]
        norm, gated = hf[at + "post_attention_layernorm.weight"], lambda where, kind="weight": torch.cat([hf[f"{where}{half}_proj.{kind}"] for half in ("gate", "up")])
        if not moe:
            made[to + "self_attention.linear_qkv.bias"] = qkv(*(hf[f"{attention}{part}_proj.bias"][:, None] for part in "qkv"), groups)[:, 0]
            made[to + "self_attention.linear_proj.bias"] = hf[attention + "o_proj.bias"]
            made[to + "mlp.linear_fc1.bias"], made[to + "mlp.linear_fc2.bias"] = gated(mlp, "bias"), hf[mlp + "down_proj.bias"]
        if not moe or layer == 0:
            made[to + "mlp.linear_fc1.layer_norm_weight"] = norm
            made[to + "mlp.linear_fc1.weight"], made[to + "mlp.linear_fc2.weight"] = gated(mlp), hf[mlp + "down_proj.weight"]
            continue
        made[to + "pre_mlp_layernorm.weight"] = norm
        made[to + "mlp.router.weight"] = hf[mlp + "gate.weight"]
        made[to + "mlp.router.expert_bias"] = hf[mlp + "moe_statics.e_score_correction_bias"].reshape(experts)
        made[to + "mlp.experts.experts.linear_fc1.weight"] = torch.stack([gated(f"{mlp}experts.{e}.") for e in range(experts)])
        made[to + "mlp.experts.experts.linear_fc2.weight"] = torch.stack([hf[f"{mlp}experts.{e}.down_proj.weight"] for e in range(experts)])
        made[to + "mlp.shared_experts.linear_fc1.weight"] = gated(mlp + "shared_experts.")
        made[to + "mlp.shared_experts.linear_fc2.weight"] = hf[mlp + "shared_experts.down_proj.weight"]

    os.makedirs(f"{family}/mcore")
    dcp.save({key: value.contiguous() for key, value in made.items()}, storage_writer=dcp.FileSystemWriter(f"{family}/mcore"), no_dist=True)
    backend = dict(sharded_backend="torch_dist", sharded_backend_version=1, common_backend="torch", common_backend_version=1)
    pathlib.Path(family, "mcore", "metadata.json").write_text(json.dumps(backend))
    args = dict(num_layers=layers, hidden_size=hidden, num_attention_heads=4, num_query_groups=groups, kv_channels=16, ffn_hidden_size=48, rotary_interleaved=True)
    if moe:
        args |= dict(num_experts=experts, moe_ffn_hidden_size=16, moe_shared_expert_intermediate_size=32, moe_layer_freq=[0, 1, 1])
    torch.save(common(**args), f"{family}/mcore/common.pt")
    describe(family, "non-homogeneous", PRODUCER, layers=layers, hidden=hidden, heads=4, groups=groups, head_dim=16, vocab=VOCAB, padded_vocab=PADDED, tied=False,
             experts=experts if moe else None, dense_layers=1 if moe else None)


def block(heads_in_group: int | None = None, ffn_mult: float | None = None, linear_attention: bool = False, linear_mlp: bool = False) -> dict:
    return {"attention": {"n_heads_in_group": heads_in_group, "no_op": heads_in_group is None and not linear_attention, "replace_with_linear": linear_attention},
            "ffn": {"ffn_mult": ffn_mult, "no_op": ffn_mult is None and not linear_mlp, "replace_with_linear": linear_mlp}}


NEMOTRON = dict(architectures=["DeciLMForCausalLM"], model_type="nemotron-nas", vocab_size=VOCAB, hidden_size=16, intermediate_size=None, num_hidden_layers=4,
                num_attention_heads=4, num_key_value_heads=None, max_position_embeddings=128, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
                attention_bias=False, mlp_bias=False, tie_word_embeddings=False, torch_dtype="bfloat16",
                block_configs=[block(2, 24.0), block(None, 48.0), block(4, linear_mlp=True), block(linear_attention=True)])


def ffn_size(ffn_mult: float) -> int:
    return -(-int(2 * ffn_mult * NEMOTRON["hidden_size"] / 3) // 256) * 256


def nemotron_weights() -> dict[str, torch.Tensor]:
    hidden, heads = NEMOTRON["hidden_size"], NEMOTRON["num_attention_heads"]
    shapes = {"model.embed_tokens": (VOCAB, hidden), "model.norm": (hidden,), "lm_head": (VOCAB, hidden)}
    for layer, (attention, ffn) in enumerate((one["attention"], one["ffn"]) for one in NEMOTRON["block_configs"]):
        at = f"model.layers.{layer}."
        if attention["replace_with_linear"]:
            shapes[at + "self_attn.linear_attn"] = (hidden, hidden)
        elif not attention["no_op"]:
            groups = heads // attention["n_heads_in_group"]
            shapes |= {f"{at}self_attn.{name}_proj": (count * hidden // heads, hidden) for name, count in zip("qkv", (heads, groups, groups))}
            shapes[at + "self_attn.o_proj"] = (hidden, hidden)
        if not attention["no_op"]:
            shapes[at + "input_layernorm"] = (hidden,)
        if ffn["replace_with_linear"]:
            shapes[at + "mlp.linear_mlp"] = (hidden, hidden)
        elif not ffn["no_op"]:
            size = ffn_size(ffn["ffn_mult"])
            shapes |= {at + "mlp.gate_proj": (size, hidden), at + "mlp.up_proj": (size, hidden), at + "mlp.down_proj": (hidden, size)}
        if not ffn["no_op"]:
            shapes[at + "post_attention_layernorm"] = (hidden,)
    return {name + ".weight": random_weights(shape, "norm" in name) for name, shape in shapes.items()}


def nemotron_logits(hf: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    """As modeling_decilm.py computes them, in float32."""
    heads = NEMOTRON["num_attention_heads"]
    dim, length = NEMOTRON["hidden_size"] // heads, tokens.shape[-1]
    weight = lambda name: hf[name + ".weight"].float()
    norm = lambda state, name: F.rms_norm(state, state.shape[-1:], weight(name), NEMOTRON["rms_norm_eps"])
    angles = torch.outer(torch.arange(length).float(), NEMOTRON["rope_theta"] ** (-torch.arange(0, dim, 2).float() / dim)).repeat(1, 2)

    def rotate(part: torch.Tensor) -> torch.Tensor:
        first, second = part.chunk(2, -1)
        return part * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    state = F.embedding(tokens, weight("model.embed_tokens"))
    for layer, (attention, ffn) in enumerate((one["attention"], one["ffn"]) for one in NEMOTRON["block_configs"]):
        at = f"model.layers.{layer}."
        if not attention["no_op"]:
            inputs = norm(state, at + "input_layernorm")
            if attention["replace_with_linear"]:
                state = state + inputs @ weight(at + "self_attn.linear_attn").T
            else:
                query, key, value = ((inputs @ weight(f"{at}self_attn.{name}_proj").T).unflatten(-1, (-1, dim)).transpose(1, 2) for name in "qkv")
                key, value = (part.repeat_interleave(attention["n_heads_in_group"], 1) for part in (rotate(key), value))
                out = F.scaled_dot_product_attention(rotate(query), key, value, is_causal=True)
                state = state + out.transpose(1, 2).flatten(2) @ weight(at + "self_attn.o_proj").T
        if not ffn["no_op"]:
            inputs = norm(state, at + "post_attention_layernorm")
            if ffn["replace_with_linear"]:
                state = state + inputs @ weight(at + "mlp.linear_mlp").T
            else:
                gate, up = (inputs @ weight(f"{at}mlp.{name}_proj").T for name in ("gate", "up"))
                state = state + (F.silu(gate) * up) @ weight(at + "mlp.down_proj").T
    return norm(state, "model.norm") @ weight("lm_head").T


def megatron_weights(hf: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    """The parameter of Megatron's model that has this name."""
    plain = {"embedding.word_embeddings.weight": "model.embed_tokens.weight", "output_layer.weight": "lm_head.weight", "decoder.final_layernorm.weight": "model.norm.weight"}
    if name in plain:
        return hf[plain[name]] if "norm" in name else padded(hf[plain[name]])
    layer, rest = name.removeprefix("decoder.layers.").split(".", 1)
    at = f"model.layers.{layer}."
    names = {"input_layernorm.weight": ["input_layernorm"], "pre_mlp_layernorm.weight": ["post_attention_layernorm"], "self_attention.weight": ["self_attn.linear_attn"],
             "self_attention.linear_proj.weight": ["self_attn.o_proj"], "mlp.weight": ["mlp.linear_mlp"], "mlp.linear_fc1.weight": ["mlp.gate_proj", "mlp.up_proj"],
             "mlp.linear_fc2.weight": ["mlp.down_proj"]}
    if rest == "self_attention.linear_qkv.weight":
        groups = NEMOTRON["num_attention_heads"] // NEMOTRON["block_configs"][int(layer)]["attention"]["n_heads_in_group"]
        return qkv(*(hf[f"{at}self_attn.{part}_proj.weight"] for part in "qkv"), groups)
    return torch.cat([hf[f"{at}{one}.weight"] for one in names[rest]])


class NoTracker:
    """Of random numbers on a GPU."""
    fork = contextlib.nullcontext


@torch.no_grad()
def llama_nemotron() -> None:
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs import get_gpt_heterogeneous_layer_spec
    from megatron.core.transformer.heterogeneous.heterogeneous_config import HeterogeneousTransformerConfig
    hf = nemotron_weights()
    os.makedirs("llama_nemotron/hf")
    os.makedirs("llama_nemotron/mcore")
    safetensors.torch.save_file(hf, "llama_nemotron/hf/model.safetensors", {"format": "pt"})
    text = json.dumps(NEMOTRON, indent=2)
    pathlib.Path("llama_nemotron/hf/config.json").write_text(text)

    torch.distributed.init_process_group("gloo", init_method="tcp://localhost:29517", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    sizes = dict(num_layers=4, hidden_size=16, num_attention_heads=4, ffn_hidden_size=64, num_query_groups=2, kv_channels=4)
    config = HeterogeneousTransformerConfig(**sizes, heterogeneous_layers_config_encoded_json=text, normalization="RMSNorm", layernorm_epsilon=1e-5, add_bias_linear=False,
                                            gated_linear_unit=True, activation_func=F.silu, use_cpu_initialization=True, perform_initialization=False, hidden_dropout=0,
                                            attention_dropout=0, bias_dropout_fusion=False, masked_softmax_fusion=False, apply_rope_fusion=False)
    with (unittest.mock.patch("torch.cuda.current_device", lambda: "cpu"), unittest.mock.patch("torch.cuda.synchronize"),
          unittest.mock.patch("megatron.core.tensor_parallel.get_cuda_rng_tracker", NoTracker)):
        model = GPTModel(config, get_gpt_heterogeneous_layer_spec(config), vocab_size=PADDED, max_sequence_length=32, share_embeddings_and_output_weights=False,
                         position_embedding_type="rope")
        for name, tensor in model.named_parameters():
            tensor.copy_(megatron_weights(hf, name))
        tokens = torch.arange(1, 25).reshape(1, 24)
        mask = torch.ones(24, 24, dtype=torch.bool).triu(1)[None, None]
        logits = model(tokens, torch.arange(24)[None], mask)[..., :VOCAB]
        wanted = nemotron_logits(hf, tokens)
        difference = (logits - wanted).abs().max().item()
        assert difference < 1e-4 < wanted.std(), (difference, wanted.std())
        state = model.bfloat16().sharded_state_dict()
        args = dict(sizes, num_experts=None, heterogeneous_layers_config_path="config.json", heterogeneous_layers_config_encoded_json=text, rotary_interleaved=False)
        dist_checkpointing.save(state | common(**args), "llama_nemotron/mcore", content_metadata={"singleton_local_shards": False, "non_homogeneous_layers": True})
    describe("llama_nemotron", "non-homogeneous", PRODUCER | {"transformers": None, "megatron_core": "0.16.1"}, layers=4, hidden=16, heads=4, groups=None, head_dim=4, vocab=VOCAB,
             padded_vocab=PADDED, tied=False, experts=None, dense_layers=None)
    print("llama_nemotron: logits differ by", difference, "at a spread of", wanted.std().item())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(11)
    ernie("ernie4_5", moe=False)
    ernie("ernie4_5_moe", moe=True)
    llama_nemotron()
