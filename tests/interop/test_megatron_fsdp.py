"""What Megatron-FSDP has saved, converted, is loaded by an ordinary model and its optimizer of Megatron-Core, the release on PYTHONPATH."""

import pathlib
import tarfile
import tempfile
import unittest

import megatron_peer as megatron
import tool
import torch
import torch_peer
import train_gpt
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig

GOLDEN = "mcore-0.16-fsdp-dtensor-dp3"


def build():
    """The model of the golden, in bfloat16, with a distributed optimizer."""
    config = TransformerConfig(num_layers=2, hidden_size=16, num_attention_heads=2, ffn_hidden_size=20, gated_linear_unit=True, activation_func=torch.nn.functional.silu,
                               add_bias_linear=False, use_cpu_initialization=True, bf16=True, params_dtype=torch.bfloat16,
                               bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False, bias_dropout_fusion=False)
    model = GPTModel(config, get_gpt_layer_local_spec(normalization="LayerNorm"), 30, 7, share_embeddings_and_output_weights=False).bfloat16()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True, overlap_grad_reduce=False), model)
    return model, get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-2, use_distributed_optimizer=True, bf16=True, params_dtype=torch.bfloat16), [model])


class MegatronFsdp(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        megatron.join()
        self.addCleanup(torch.distributed.destroy_process_group)

    def test_its_state_goes_on_in_an_ordinary_model(self):
        with tarfile.open(tool.ROOT / "tests" / "data" / "megatron_fsdp" / f"{GOLDEN}.tar.xz") as archive:
            archive.extractall(self.folder)
        tool.run("convert", self.folder / GOLDEN / "ckpt", self.folder / "converted", "--to", "torch_dist")
        saved, _ = torch_peer.load_all(self.folder / GOLDEN / "ckpt")
        with train_gpt.OnCpu():
            parallel_state.initialize_model_parallel()
            self.addCleanup(parallel_state.destroy_model_parallel)
            tensor_parallel.model_parallel_cuda_manual_seed(1)
            model, optimizer = build()
            wanted = train_gpt.state(model, optimizer, True, None)
            del wanted["content_metadata"]
            loaded = megatron.checkpointing.load(wanted, str(self.folder / "converted"))
            model.module.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optimizer"])
        self.assertEqual({group["step"] for group in optimizer.param_groups}, {2})

        def original(key: str, prefix: str, suffix: str) -> torch.Tensor:
            names = [key + half for half in ("_w", "_v")] if key.endswith("linear_fc1.weight") else [key]
            return torch.cat([saved[prefix + name + suffix] for name in names])

        chained = getattr(optimizer, "chained_optimizers", [optimizer])[0]
        parameters = dict(model.module.named_parameters())
        self.assertEqual(len(parameters), 21)
        for key, parameter in parameters.items():
            main = original(key, "model.module.", "")
            self.assertTrue(torch.equal(parameter, main.bfloat16()), key)
            group, order = chained.model_param_group_index_map[parameter]
            shard = chained.optimizer.param_groups[group]["params"][order]
            self.assertTrue(torch.equal(shard.flatten(), main.flatten()), key)
            for moment in "exp_avg", "exp_avg_sq":
                self.assertTrue(torch.equal(chained.optimizer.state[shard][moment].flatten(), original(key, "optimizer.state.module.module.", "." + moment).flatten()), key)
