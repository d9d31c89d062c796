"""make.py FOLDER: models, LoRA adapters for them, and what PEFT 0.21.2 merges of both.

Run with it, torch 2.11.0, transformers 5.23.0 and safetensors on PYTHONPATH. FOLDER gets

    NAME/base       the model, as save_pretrained writes it
    NAME/adapter    the adapter, likewise
    NAME/merged     PeftModel.from_pretrained(base, adapter).merge_and_unload(), saved

The elements of the adapters are multiples of 1/8 and the scales powers of two, so that products are
exact in float32 and the results do not depend on the order of additions.
"""

import os
import shutil
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM


def llama():
    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=20,
            attention_bias=True,
            max_position_embeddings=32,
        )
    ).to(torch.bfloat16)


def gpt2():
    return GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=20, n_positions=8, bos_token_id=0, eos_token_id=0)
    )


CASES = {
    "llama": (
        llama,
        LoraConfig(
            r=4,
            lora_alpha=8,
            use_rslora=True,
            target_modules=["q_proj", "v_proj", "down_proj"],
            rank_pattern={r"layers\.1\.self_attn\.q_proj": 16},
            alpha_pattern={"^model.layers.0.mlp.down_proj": 1},
            bias="lora_only",
            modules_to_save=["lm_head"],
        ),
    ),
    "gpt2": (gpt2, LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn", "c_proj", "wte"], fan_in_fan_out=True)),
}


def trained(parameter, generator):
    return (torch.randint(-8, 9, parameter.shape, generator=generator) / 8).to(parameter.dtype)


def save(model, folder):
    model.save_pretrained(folder)
    for name in ("README.md", "generation_config.json"):
        if os.path.exists(os.path.join(folder, name)):
            os.remove(os.path.join(folder, name))


for name, (make, config) in CASES.items():
    folder = os.path.join(sys.argv[1], name)
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(1)
    model = make()
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data = (torch.randn(parameter.shape, generator=generator) / 4).to(parameter.dtype)
    save(model, os.path.join(folder, "base"))
    adapted = get_peft_model(model, config)
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = trained(parameter, generator)
    save(adapted, os.path.join(folder, "adapter"))
    base = type(model).from_pretrained(os.path.join(folder, "base"), dtype=model.dtype)
    save(PeftModel.from_pretrained(base, os.path.join(folder, "adapter")).merge_and_unload(), os.path.join(folder, "merged"))
