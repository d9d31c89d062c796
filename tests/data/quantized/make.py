"""make.py FOLDER: models with weights of 4 and 8 bits as they are published, and what their own libraries make of them.

Run with torch 2.11.0, transformers 5.23.0, compressed-tensors 0.20.0 and nvidia-modelopt 0.47.0 on
PYTHONPATH. FOLDER gets NAME/published and NAME/values, the same model with weights of bfloat16:

    gpt_oss    MXFP4: codes and scales are random; transformers' convert_moe_packed_tensors
    kimi_k2    int4 in groups of 32 and of 16: PackedQuantizationCompressor, there and back
    nvfp4      NVFP4 of ModelOpt: NVFP4QTensor, there and back
    fp8        float8 with scales of blocks of 128 x 128, as DeepSeek V3; transformers' Fp8Dequantize
"""

import json
import os
import sys

import torch
from compressed_tensors.compressors import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from safetensors.torch import load_file, save_file
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.integrations.finegrained_fp8 import Fp8Dequantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

COMMON = dict(hidden_size=64, num_attention_heads=2, vocab_size=16, max_position_embeddings=32)


def mxfp4(weights):
    """Replaces experts, transposed, by random codes of all exponents from 2^-127 to 2^120."""
    stored = {}
    for key, weight in list(weights.items()):
        if key.endswith("_proj") and ".experts." in key:
            experts, columns, rows = weight.shape
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
            scales = torch.randint(0, 248, blocks.shape[:-1], dtype=torch.uint8)
            stored[key + "_blocks"], stored[key + "_scales"] = blocks, scales
            weights[key] = convert_moe_packed_tensors(blocks, scales)
        else:
            stored[key] = weight
    return stored, dict(quant_method="mxfp4", modules_to_not_convert=["lm_head"])


def int4(weights):
    stored = {}
    for key, weight in list(weights.items()):
        if ".experts." not in key:
            stored[key] = weight
            continue
        group = 16 if "down_proj" in key else 32
        args = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=group)
        scheme = QuantizationScheme(targets=["Linear"], weights=args)
        scale = weight.reshape(weight.shape[0], -1, group).abs().amax(-1) / 7.5
        packed = PackedQuantizationCompressor.compress({"weight": weight, "weight_scale": scale}, scheme)
        weights[key] = PackedQuantizationCompressor.decompress(packed, scheme)["weight"].to(torch.bfloat16)
        for name, part in packed.items():
            stored[key.removesuffix("weight") + name] = part
    groups = {
        f"group_{i}": dict(targets=[target], weights=dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=size))
        for i, (target, size) in enumerate([("re:.*(gate|up)_proj.*", 32), ("re:.*down_proj.*", 16)])
    }
    return stored, dict(quant_method="compressed-tensors", format="pack-quantized", config_groups=groups)


def nvfp4(weights):
    stored = {}
    for key, weight in list(weights.items()):
        stored[key] = weight
        if not key.endswith("_proj.weight"):
            continue
        packed, scale, double_scale = NVFP4QTensor.quantize(weight, 16)
        weights[key] = packed.dequantize(torch.bfloat16, scale=scale, double_scale=double_scale, block_sizes={-1: 16})
        stored[key] = packed._quantized_data
        stored[key + "_scale"], stored[key + "_scale_2"] = scale, double_scale
        stored[key.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
    return stored, dict(quant_method="modelopt", quant_algo="NVFP4", ignore=["lm_head"])


def fp8(weights):
    stored = {}
    for key, weight in list(weights.items()):
        stored[key] = weight
        if not key.endswith("_proj.weight"):
            continue
        rows, columns = weight.shape
        padded = torch.nn.functional.pad(weight.float(), (0, -columns % 128, 0, -rows % 128))
        blocks = padded.reshape(-(-rows // 128), 128, -(-columns // 128), 128)
        scales = blocks.abs().amax((1, 3), keepdim=True) / 448
        codes = (blocks / scales).to(torch.float8_e4m3fn).reshape(padded.shape)
        scales = scales.squeeze((1, 3)).contiguous()
        weights[key] = (codes.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1))[:rows, :columns].bfloat16()
        stored[key], stored[key + "_scale_inv"] = codes[:rows, :columns], scales
        if rows % 128 == columns % 128 == 0:
            assert torch.equal(weights[key], Fp8Dequantize(None)._dequantize_one(stored[key], scales, torch.bfloat16))
    return stored, dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128])


MODELS = dict(
    fp8=(
        Qwen3ForCausalLM(
            Qwen3Config(**COMMON | dict(hidden_size=128), intermediate_size=129, num_hidden_layers=1, num_key_value_heads=1, head_dim=64, tie_word_embeddings=True)
        ),
        fp8,
    ),
    gpt_oss=(
        GptOssForCausalLM(
            GptOssConfig(**COMMON, intermediate_size=32, num_hidden_layers=2, num_key_value_heads=1, head_dim=16, num_local_experts=2)
        ),
        mxfp4,
    ),
    kimi_k2=(
        DeepseekV3ForCausalLM(
            DeepseekV3Config(
                **COMMON,
                intermediate_size=32,
                moe_intermediate_size=32,
                num_hidden_layers=2,
                num_key_value_heads=2,
                n_routed_experts=4,
                n_group=1,
                topk_group=1,
                num_experts_per_tok=2,
                first_k_dense_replace=1,
                q_lora_rank=8,
                kv_lora_rank=8,
                qk_rope_head_dim=8,
                qk_nope_head_dim=8,
                v_head_dim=8,
                num_nextn_predict_layers=0,
            )
        ),
        int4,
    ),
    nvfp4=(
        Qwen3ForCausalLM(
            Qwen3Config(**COMMON, intermediate_size=96, num_hidden_layers=2, num_key_value_heads=1, head_dim=16, tie_word_embeddings=False)
        ),
        nvfp4,
    ),
)

torch.manual_seed(4)
for name, (model, quantize) in MODELS.items():
    values, published = (os.path.join(sys.argv[1], name, kind) for kind in ("values", "published"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.to(torch.bfloat16).save_pretrained(values)
    os.remove(os.path.join(values, "generation_config.json"))
    weights = load_file(os.path.join(values, "model.safetensors"))
    stored, quantization = quantize(weights)
    os.makedirs(published)
    with open(os.path.join(values, "config.json")) as file:
        config = json.load(file)
    config["quantization_config"] = quantization
    with open(os.path.join(published, "config.json"), "w") as file:
        json.dump(config, file, indent=1)
    for folder, tensors in (values, weights), (published, stored):
        contiguous = {key: tensor.contiguous() for key, tensor in tensors.items()}
        save_file(contiguous, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
