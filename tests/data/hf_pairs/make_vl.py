"""make_vl.py FOLDER: the pairs qwen2_5_vl and qwen3_vl, models of text and images.

Run with torch 2.11.0, transformers 5.23.0 and safetensors on PYTHONPATH. FOLDER gets

    NAME/hf         the model, as save_pretrained writes it
    NAME/mcore      the same tensors under the names that Megatron-Bridge gives them, whole, by torch's DCP
    NAME/pair.json  the numbers of the model

The language model has Megatron's GPT keys behind `language_model.`. The tower of qwen2_5_vl is the module of
transformers, unchanged. That of qwen3_vl consists of layers of Megatron, with an axis for them.
"""

import argparse
import json
import os
import sys

import torch
import torch.distributed.checkpoint as dcp
import transformers
from safetensors.torch import load_file

VOCAB, PADDED, HIDDEN, FFN, HEADS, GROUPS, LAYERS = 100, 128, 32, 48, 4, 2, 2
VISION = dict(hidden_size=16, intermediate_size=24, num_heads=2, out_hidden_size=HIDDEN, patch_size=4, spatial_merge_size=2, temporal_patch_size=2)
TOKENS = dict(image_token_id=97, video_token_id=98, vision_start_token_id=95, vision_end_token_id=96)


def text_config(sections, **more):
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    return dict(vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=GROUPS,
                max_position_embeddings=128, rope_parameters=rope, bos_token_id=1, eos_token_id=2, pad_token_id=0, **more)


def qwen2_5_vl():
    vision = dict(VISION, depth=2, window_size=16, fullatt_block_indexes=[1])
    config = transformers.Qwen2_5_VLConfig(text_config=text_config([1, 1, 2]), vision_config=vision, tie_word_embeddings=False, **TOKENS)
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen3_vl():
    vision = dict(VISION, depth=3, num_position_embeddings=16, deepstack_visual_indexes=[0, 1])
    config = transformers.Qwen3VLConfig(text_config=text_config([2, 2, 2], head_dim=12, tie_word_embeddings=True), vision_config=vision, tie_word_embeddings=True, **TOKENS)
    return transformers.Qwen3VLForConditionalGeneration(config)


def qkv(query, key, value, heads, groups):
    parts = [query.reshape(groups, -1, *query.shape[1:]), key.reshape(groups, -1, *key.shape[1:]), value.reshape(groups, -1, *value.shape[1:])]
    return torch.cat(parts, 1).reshape(-1, *query.shape[1:])


def padded(tensor):
    return torch.cat([tensor, tensor.new_zeros(PADDED - VOCAB, tensor.shape[1])])


def language_model(hf, prefix):
    """Returns Megatron's tensors of the language model, whose keys start with `prefix` in `hf`."""
    made = {"embedding.word_embeddings.weight": padded(hf[prefix + "embed_tokens.weight"]), "decoder.final_layernorm.weight": hf[prefix + "norm.weight"]}
    if "lm_head.weight" in hf:
        made["output_layer.weight"] = padded(hf["lm_head.weight"])
    layers = [{key[len(f"{prefix}layers.{i}."):]: hf[key] for key in hf if key.startswith(f"{prefix}layers.{i}.")} for i in range(LAYERS)]
    stacked = {key: torch.stack([layer[key] for layer in layers]) for key in layers[0]}
    names = {"input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight", "self_attn.o_proj.weight": "self_attention.linear_proj.weight",
             "self_attn.q_norm.weight": "self_attention.q_layernorm.weight", "self_attn.k_norm.weight": "self_attention.k_layernorm.weight",
             "post_attention_layernorm.weight": "mlp.linear_fc1.layer_norm_weight", "mlp.down_proj.weight": "mlp.linear_fc2.weight"}
    made |= {"decoder.layers." + names[key]: tensor for key, tensor in stacked.items() if key in names}
    made["decoder.layers.mlp.linear_fc1.weight"] = torch.cat([stacked["mlp.gate_proj.weight"], stacked["mlp.up_proj.weight"]], 1)
    for kind in "weight", "bias":
        if f"self_attn.q_proj.{kind}" in stacked:
            parts = [[layer[f"self_attn.{name}_proj.{kind}"] for name in "qkv"] for layer in layers]
            made[f"decoder.layers.self_attention.linear_qkv.{kind}"] = torch.stack([qkv(*part, HEADS, GROUPS) for part in parts])
    return {"language_model." + key: tensor for key, tensor in made.items()}


def megatron_tower(hf, depth, heads):
    """Returns the tensors of qwen3_vl's tower as layers of Megatron."""
    names = {"norm1": "self_attention.linear_qkv.layer_norm_{}", "norm2": "mlp.linear_fc1.layer_norm_{}", "attn.proj": "self_attention.linear_proj.{}",
             "mlp.linear_fc1": "mlp.linear_fc1.{}", "mlp.linear_fc2": "mlp.linear_fc2.{}", "attn.qkv": "self_attention.linear_qkv.{}"}
    made = {}
    for module, name in names.items():
        for kind in "weight", "bias":
            layers = [hf[f"model.visual.blocks.{i}.{module}.{kind}"] for i in range(depth)]
            if module == "attn.qkv":
                layers = [qkv(*layer.chunk(3), heads, heads) for layer in layers]
            made["vision_model.decoder.layers." + name.format(kind)] = torch.stack(layers)
    for key, tensor in hf.items():
        if key.startswith("model.visual.") and ".blocks." not in key:
            key = key.removeprefix("model.visual.").replace("norm.", "patch_norm.")
            made["vision_model." + ("decoder." if key.startswith("deepstack") else "") + key] = tensor
    return made


def write(name, tensors, tied, more):
    writer = dcp.FileSystemWriter(f"{name}/mcore")
    dcp.save({key: tensor.contiguous() for key, tensor in tensors.items()}, storage_writer=writer, no_dist=True)
    with open(f"{name}/mcore/metadata.json", "w") as file:
        json.dump({"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}, file)
    args = dict(num_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=HEADS, num_query_groups=GROUPS, group_query_attention=True, ffn_hidden_size=FFN, padded_vocab_size=PADDED,
                vocab_size=None, make_vocab_size_divisible_by=128, tensor_model_parallel_size=1, pipeline_model_parallel_size=1, untie_embeddings_and_output_weights=not tied,
                swiglu=True, normalization="RMSNorm", rotary_percent=1.0, rotary_interleaved=False, apply_layernorm_1p=False, num_experts=None, **more)
    torch.save({"checkpoint_version": 3.0, "iteration": 10, "args": argparse.Namespace(**args)}, f"{name}/mcore/common.pt")


def main():
    os.chdir(sys.argv[1])  # the id of a checkpoint, which its metadata has, is then a relative name
    for make in qwen2_5_vl, qwen3_vl:
        name = make.__name__
        torch.manual_seed(7)
        model = make().to(torch.bfloat16)
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.normal_(0, 0.3)
        model.save_pretrained(f"{name}/hf")
        os.remove(f"{name}/hf/generation_config.json")
        hf = load_file(f"{name}/hf/model.safetensors")
        tied = "lm_head.weight" not in hf
        if name == "qwen3_vl":
            tensors = language_model(hf, "model.language_model.") | megatron_tower(hf, 3, VISION["num_heads"])
            write(name, tensors, tied, dict(kv_channels=12, qk_layernorm=True, vision_num_attention_heads=VISION["num_heads"]))
        else:
            tensors = language_model(hf, "model.") | {key: tensor for key, tensor in hf.items() if key.startswith("visual.")}
            write(name, tensors, tied, dict(kv_channels=8, add_qkv_bias=True))
        numbers = dict(layers=LAYERS, hidden=HIDDEN, heads=HEADS, groups=GROUPS, head_dim=12 if name == "qwen3_vl" else 8, vocab=VOCAB, padded_vocab=PADDED, tied=tied, experts=None,
                       dense_layers=None, vision_layers=model.config.vision_config.depth, vision_heads=VISION["num_heads"])
        pair = dict(family=name, names="te", layout="homogeneous", dtype="bfloat16", producer=dict(transformers=transformers.__version__, torch=torch.__version__.split("+")[0], megatron_core=None),
                    saved_with=dict(tp=1, pp=1, ep=1, world=1), numbers=numbers)
        with open(f"{name}/pair.json", "w") as file:
            json.dump(pair, file, indent=1)


if __name__ == "__main__":
    main()
