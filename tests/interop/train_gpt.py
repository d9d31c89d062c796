"""A small GPT trained by Megatron-Core, the release on PYTHONPATH, on CPUs: train_gpt.py JOB, a JSON object.

"ranks", "tensor" (parallel size), "load" (folder; optional), "first" (step), "steps", "save" (folder; optional), "save_after" (step), "losses" (file to write);
"sharding", "load_sharding" (of the optimizer's state that is saved and loaded; default: one that resumes under any layout), "dtype" (default: float32),
"experts" (their number; default: a dense model), "expert" (parallel size)
"""

from __future__ import annotations

import json
import pathlib
import sys


import megatron_peer as peer
import torch
import torch.distributed as dist
import torch.overrides
import megatron.core.optimizer.distrib_optimizer
import megatron.core.transformer.moe.moe_utils
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig
from ranks import run_ranks

VOCABULARY, LENGTH, BATCH = 64, 16, 2


class OnCpu(torch.overrides.TorchFunctionMode):
    """Whoever names a GPU gets the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if "cuda" in str(kwargs.get("device")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class FusedAdam(torch.optim.Optimizer):
    """Adam as Megatron knows it from Transformer Engine and Apex: `step` belongs to the groups of parameters."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0, **_):
        super().__init__(params, {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            first, second = group["betas"]
            for param in group["params"]:
                state = self.state[param]
                for name in ("exp_avg", "exp_avg_sq"):
                    if name not in state:
                        state[name] = torch.zeros_like(param)
                state["exp_avg"].mul_(first).add_(param.grad, alpha=1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(param.grad, param.grad, value=1 - second)
                scale = (state["exp_avg_sq"] / (1 - second ** group["step"])).sqrt_().add_(group["eps"])
                param.mul_(1 - group["lr"] * group["weight_decay"]).addcdiv_(state["exp_avg"], scale, value=-group["lr"] / (1 - first ** group["step"]))


def _on_cpu() -> None:
    """What asks for a GPU beyond megatron_peer."""
    plain = torch.Tensor.type
    torch.Tensor.type = lambda self, *args, **kwargs: plain(self, *args, **kwargs) if args or kwargs else "torch.cuda." + plain(self).rsplit(".", 1)[1]
    torch.cuda.random.get_rng_state = torch.cuda.get_rng_state = lambda *_, **__: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.random.set_rng_state = torch.cuda.set_rng_state = lambda *_, **__: None
    torch.cuda.manual_seed = lambda *_: None
    tensor_parallel.random._set_cuda_rng_state = lambda *_, **__: None
    torch.cuda.current_stream = lambda *_: None
    torch.cuda.is_current_stream_capturing = lambda: False
    megatron.core.transformer.moe.moe_utils.te_general_gemm = None      # 0.16 asks for it where Transformer Engine is missing

    megatron.core.optimizer.Adam = megatron.core.optimizer.distrib_optimizer.Adam = FusedAdam
    megatron.core.optimizer.USING_PYTORCH_OPTIMIZER = False
    megatron.core.optimizer.distrib_optimizer.HAVE_APEX_OR_TE = True


_on_cpu()


def build(job: dict):
    experts = job.get("experts")
    parallel_state.initialize_model_parallel(job["tensor"], expert_model_parallel_size=job.get("expert", 1))
    tensor_parallel.model_parallel_cuda_manual_seed(1234)
    torch.manual_seed(1234)
    dtype = getattr(torch, job.get("dtype", "float32"))
    half = dtype == torch.bfloat16
    sparse = {"num_moe_experts": experts, "expert_model_parallel_size": job.get("expert", 1), "moe_router_topk": 2, "moe_ffn_hidden_size": 24,
              "moe_token_dispatcher_type": "allgather"} if experts else {}
    config = TransformerConfig(**sparse, params_dtype=dtype, bf16=half, num_layers=2, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=48, gated_linear_unit=True,
                               activation_func=torch.nn.functional.silu, add_bias_linear=False, use_cpu_initialization=True,
                               tensor_model_parallel_size=job["tensor"], hidden_dropout=0.0, attention_dropout=0.0,
                               bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False, bias_dropout_fusion=False)
    model = GPTModel(config, get_gpt_layer_local_spec(num_experts=experts, normalization="LayerNorm"), VOCABULARY, LENGTH, share_embeddings_and_output_weights=False).to(dtype)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=half, overlap_grad_reduce=False), model)
    model.broadcast_params()
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-2, weight_decay=0.01, use_distributed_optimizer=True, bf16=half, params_dtype=dtype), [model])
    return model, optimizer


def step(model, optimizer, number: int) -> float:
    generator = torch.Generator().manual_seed(100 + number)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
    model.zero_grad_buffer()
    optimizer.zero_grad()
    positions = torch.arange(LENGTH).unsqueeze(0).expand(BATCH, -1)
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    loss = model(tokens[:, :-1], positions, mask, labels=tokens[:, 1:]).mean()
    loss.backward()
    model.finish_grad_sync()
    optimizer.step()
    return loss.item()


def state(model, optimizer, loading: bool, sharding: str | None) -> dict:
    """Everything that the release saves and resumes from."""
    sharding = sharding or ("fully_sharded_model_space" if peer.HAS_FLATTENED else "fully_reshardable")
    metadata = {"distrib_optim_sharding_type": sharding, "singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if sharding == "fully_reshardable":
        metadata["distrib_optim_fully_reshardable_mem_efficient"] = False
    weights = model.module.sharded_state_dict(metadata=metadata)
    return {"model": weights, "optimizer": optimizer.sharded_state_dict(weights, is_loading=loading, metadata=metadata), "content_metadata": metadata}


def train(job: dict, rank: int) -> None:
    with OnCpu():
        run(job, rank)


def run(job: dict, rank: int) -> None:
    model, optimizer = build(job)
    if job.get("load"):
        wanted = state(model, optimizer, True, job.get("load_sharding"))
        del wanted["content_metadata"]
        loaded = peer.checkpointing.load(wanted, job["load"])
        model.module.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
    losses = []
    for number in range(job["first"], job["first"] + job["steps"]):
        losses.append(step(model, optimizer, number))
        if job.get("save") and number + 1 == job["save_after"]:
            folder = pathlib.Path(job["save"])
            if rank == 0:
                folder.mkdir(parents=True)
            dist.barrier()
            peer.checkpointing.save(state(model, optimizer, False, job.get("sharding")), str(folder), peer.strategy())
    if rank == 0:
        pathlib.Path(job["losses"]).write_text(json.dumps(losses))


if __name__ == "__main__":
    job = json.loads(sys.argv[1])
    run_ranks(job["ranks"], lambda rank: train(job, rank))
