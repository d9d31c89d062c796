"""Rank folders that the tool writes (convert --to torch) load strictly into real models of Megatron-Core, the release on PYTHONPATH, which then hold the golden's weights."""

import pathlib
import tempfile
import unittest

import train_gpt
import megatron_peer as megatron
import tool
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer import TransformerConfig
from ranks import run_ranks

# The models of the goldens; all have two layers of 32 wide, four heads, 128 words and 16 positions.
GATED = {"ffn_hidden_size": 64, "gated_linear_unit": True, "activation_func": torch.nn.functional.silu, "add_bias_linear": False}
TIED = {"ffn_hidden_size": 96}
EXPERTS = {**GATED, "ffn_hidden_size": 32, "num_moe_experts": 4, "moe_ffn_hidden_size": 32, "moe_router_topk": 2, "moe_token_dispatcher_type": "allgather"}

CASES = (
    ("mcore-0.16-fully-reshardable-tp2pp2dp2", GATED, False, (2, 2, 1)),
    ("mcore-0.14-flattened-tied-tp2pp1dp2", TIED, True, (2, 2, 1)),
    ("mcore-0.14-moe-ep2", EXPERTS, False, (1, 2, 2)),
)


def build(settings: dict, tied: bool, tensor: int, pipeline: int, expert: int) -> GPTModel:
    parallel_state.initialize_model_parallel(tensor, pipeline, expert_model_parallel_size=expert)
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    config = TransformerConfig(num_layers=2, hidden_size=32, num_attention_heads=4, use_cpu_initialization=True, params_dtype=torch.bfloat16, bf16=True, pipeline_dtype=torch.bfloat16,
                               tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, expert_model_parallel_size=expert,
                               bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False, bias_dropout_fusion=False, **settings)
    spec = get_gpt_layer_local_spec(num_experts=settings.get("num_moe_experts"), normalization="LayerNorm")
    return GPTModel(config, spec, 128, 16, pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
                    share_embeddings_and_output_weights=tied).to(torch.bfloat16)


def folder_name(tensor: int, pipeline: int, expert: int) -> str:
    """As Megatron's get_checkpoint_name."""
    name = f"mp_rank_{parallel_state.get_tensor_model_parallel_rank():02d}"
    if pipeline > 1:
        name += f"_{parallel_state.get_pipeline_model_parallel_rank():03d}"
    if expert > 1:
        name += f"_{parallel_state.get_expert_model_parallel_rank():03d}"
    return name


def load_and_save(source: pathlib.Path, target: pathlib.Path, settings: dict, tied: bool, sizes: tuple) -> None:
    with train_gpt.OnCpu():
        model = build(settings, tied, *sizes)
        state = torch.load(source / folder_name(*sizes) / "model_optim_rng.pt", map_location="cpu", weights_only=False)
        assert state["checkpoint_version"] == 3.0 and state["iteration"] == 10
        args = state["args"]
        assert (args.tensor_model_parallel_size, args.pipeline_model_parallel_size, args.expert_model_parallel_size) == sizes
        model.load_state_dict(state["model"], strict=True)
        megatron.checkpointing.save({"model": model.sharded_state_dict()}, str(target), megatron.strategy())


class MegatronLoadsRanks(unittest.TestCase):
    def test_goldens(self):
        for name, settings, tied, sizes in CASES:
            with self.subTest(name, sizes=sizes), tempfile.TemporaryDirectory() as folder:
                source, target = pathlib.Path(folder) / "ranks", pathlib.Path(folder) / "saved"
                tensor, pipeline, expert = sizes
                tool.run("convert", tool.GOLDENS / name / "ckpt", source, "--to", "torch", "--exclude", "optimizer*", "--transformer-impl", "local",
                         "--tensor-parallel", str(tensor), "--pipeline-parallel", str(pipeline), "--expert-parallel", str(expert))
                target.mkdir()
                run_ranks(tensor * pipeline * expert, lambda rank: load_and_save(source, target, settings, tied, sizes))
                wanted = {key: digest for key, digest in tool.wanted_digests(tool.expected(name)).items() if not key.startswith("optimizer.")}
                self.assertEqual(tool.digests(target), wanted)
