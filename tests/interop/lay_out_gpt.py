"""A GPT of Megatron-Core, the release on PYTHONPATH, on CPUs, whose optimizer is saved as dp_reshardable: lay_out_gpt.py JOB, a JSON object.

"ranks", "tensor", "pipeline", "expert", "virtual" (parallel sizes; default: 1), "experts" (their number; default: a dense model), "tied" (embeddings), "bucket_size"
(default: gradients are not reduced while others are computed), "biases"; "save" (folder to write)
"""

from __future__ import annotations

import json
import pathlib
import sys

import train_gpt
import megatron_peer as peer
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from ranks import run_ranks


def build(job: dict):
    tensor, pipeline, expert, virtual = (job.get(name, 1) for name in ("tensor", "pipeline", "expert", "virtual"))
    parallel_state.initialize_model_parallel(tensor, pipeline, virtual if virtual > 1 else None, expert_model_parallel_size=expert)
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    torch.manual_seed(1234 + parallel_state.get_pipeline_model_parallel_rank())
    experts = job.get("experts")
    sparse = {"num_moe_experts": experts, "expert_model_parallel_size": expert, "moe_router_topk": 2, "moe_ffn_hidden_size": 24,
              "moe_token_dispatcher_type": "allgather"} if experts else {}
    biases = job.get("biases", False)
    config = TransformerConfig(**sparse, params_dtype=torch.bfloat16, bf16=True, num_layers=4, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=48,
                               gated_linear_unit=not biases, activation_func=torch.nn.functional.gelu if biases else torch.nn.functional.silu, add_bias_linear=biases,
                               use_cpu_initialization=True, tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline, pipeline_dtype=torch.bfloat16,
                               virtual_pipeline_model_parallel_size=virtual if virtual > 1 else None, hidden_dropout=0.0, attention_dropout=0.0,
                               bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False, bias_dropout_fusion=False)
    ddp = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce="bucket_size" in job, bucket_size=job.get("bucket_size"))
    chunks = []
    for number in range(virtual):
        stage = number if virtual > 1 else None
        ends = {"pre_process": parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage), "post_process": parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage)}
        model = GPTModel(config, get_gpt_layer_local_spec(num_experts=experts, normalization="LayerNorm"), 64, 16, **ends, vp_stage=stage,
                         share_embeddings_and_output_weights=job.get("tied", False)).to(torch.bfloat16)
        tell_apart(model, number)
        chunks.append(DistributedDataParallel(config, ddp, model, disable_bucketing=number > 0))
    for chunk in chunks:
        chunk.broadcast_params()
    return chunks, get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-2, use_distributed_optimizer=True, bf16=True, params_dtype=torch.bfloat16), chunks)


def tell_apart(model, chunk: int) -> None:
    """Norms, biases and experts without zeros, different from each other."""
    for number, (name, param) in enumerate(model.named_parameters()):
        if param.dim() == 1 or ".experts." in name:
            tensor = parallel_state.get_tensor_model_parallel_rank() if getattr(param, "tensor_model_parallel", False) else 9
            expert = parallel_state.get_expert_model_parallel_rank() if ".experts." in name else 9
            seed = int(f"{number}{chunk}{parallel_state.get_pipeline_model_parallel_rank()}{tensor}{expert}")
            param.data.normal_(generator=torch.Generator().manual_seed(seed))


def set_moments(optimizer) -> None:
    """Without zeros, the same wherever ranks hold the same: made of the weights."""
    for one in getattr(optimizer, "chained_optimizers", [optimizer]):
        one._init_optimizer_states_with_dummy_values()
        for group in one.optimizer.param_groups:
            for param in group["params"]:
                for number, name in enumerate(("exp_avg", "exp_avg_sq")):
                    one.optimizer.state[param][name].copy_(param.data * (number + 2))


def save(job: dict, rank: int) -> None:
    chunks, optimizer = build(job)
    set_moments(optimizer)
    metadata = {"distrib_optim_sharding_type": "dp_reshardable", "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    weights = {f"model{number}": chunk.module.sharded_state_dict(metadata=metadata) for number, chunk in enumerate(chunks)}
    state = optimizer.sharded_state_dict(weights if len(chunks) > 1 else weights["model0"], metadata=metadata)
    if rank == 0:
        pathlib.Path(job["save"]).mkdir()
    dist.barrier()
    peer.checkpointing.save({**weights, "optimizer": state, "content_metadata": metadata}, job["save"], peer.strategy())


def run(job: dict, rank: int) -> None:
    with train_gpt.OnCpu():
        save(job, rank)


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    run_ranks(job["ranks"], lambda rank: run(job, rank))
