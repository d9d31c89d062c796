"""Maps make of models of Hugging Face what Megatron-Core asks for: the order of rows that its interleaved rotary embeddings turn together, layers for multi-token
prediction, and the parts of projections of Mamba and of gated delta nets."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

import numpy
import safetensors.torch
import torch
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_layer_local_spec, get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.models.gpt.heterogeneous.heterogeneous_layer_specs import get_gpt_heterogeneous_layer_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.ssm import gated_delta_net as gated_delta_net_module, mamba_mixer as mamba_mixer_module
from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.heterogeneous.heterogeneous_config import HeterogeneousTransformerConfig
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd as rotate
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding

import tool
from ranks import run_ranks

HEADS, GROUPS, DIM, HIDDEN, LENGTH = 4, 2, 8, 16, 12


PAIRS = pathlib.Path(__file__).parent.parent / "data" / "hf_pairs"


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

    def test_layers_for_multi_token_prediction_load(self):
        layers, mtp, experts, hidden, heads = 2, 2, 4, 32, 4
        attention = {"q_a_proj": (24, hidden), "q_a_layernorm": (24,), "q_b_proj": (heads * 24, 24), "kv_a_proj_with_mqa": (24, hidden), "kv_a_layernorm": (16,),
                     "kv_b_proj": (heads * 28, 16), "o_proj": (hidden, heads * 12)}
        moe = {"gate": (experts, hidden), **{f"experts.{e}.{name}": shape for e in range(experts) for name, shape in
               dict(gate_proj=(16, hidden), up_proj=(16, hidden), down_proj=(hidden, 16)).items()}}
        moe |= {f"shared_experts.{name}": shape for name, shape in dict(gate_proj=(16, hidden), up_proj=(16, hidden), down_proj=(hidden, 16)).items()}
        tensors = {"model.embed_tokens.weight": (128, hidden), "model.norm.weight": (hidden,), "lm_head.weight": (128, hidden)}
        for layer in range(layers + mtp):
            at = f"model.layers.{layer}."
            tensors |= {f"{at}self_attn.{name}.weight": shape for name, shape in attention.items()} | {f"{at}mlp.{name}.weight": shape for name, shape in moe.items()}
            tensors |= {f"{at}input_layernorm.weight": (hidden,), f"{at}post_attention_layernorm.weight": (hidden,), f"{at}mlp.gate.e_score_correction_bias": (experts,)}
            if layer >= layers:
                tensors |= {f"{at}{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")} | {f"{at}eh_proj.weight": (hidden, 2 * hidden)}
                tensors |= {f"{at}{name}.weight": (128, hidden) for name in ("embed_tokens", "shared_head.head")}
        tensors = {key: torch.randn(shape) for key, shape in tensors.items()}
        config = dict(model_type="deepseek_v3", num_hidden_layers=layers, num_nextn_predict_layers=mtp, n_routed_experts=experts, vocab_size=128)

        def loads(rank: int) -> None:
            parallel_state.initialize_model_parallel()
            found = megatron_with_mtp(layers, mtp, experts, hidden, heads)
            state = found.sharded_state_dict()
            dist_checkpointing.load(state, str(root / "megatron"), strict=StrictHandling.RAISE_UNEXPECTED)
            names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "final_layernorm": "shared_head.norm", "transformer_layer.input_layernorm": "input_layernorm",
                     "transformer_layer.pre_mlp_layernorm": "post_attention_layernorm", "transformer_layer.mlp.router": "mlp.gate",
                     "transformer_layer.mlp.shared_experts.linear_fc2": "mlp.shared_experts.down_proj", "transformer_layer.self_attention.linear_proj": "self_attn.o_proj"}
            names |= {f"transformer_layer.self_attention.{name}": f"self_attn.{other}" for name, other in
                      dict(linear_q_down_proj="q_a_proj", q_layernorm="q_a_layernorm", linear_q_up_proj="q_b_proj", linear_kv_down_proj="kv_a_proj_with_mqa",
                           kv_layernorm="kv_a_layernorm", linear_kv_up_proj="kv_b_proj").items()}
            names |= {f"transformer_layer.mlp.experts.local_experts.{e}.linear_fc2": f"mlp.experts.{e}.down_proj" for e in range(experts)}
            wanted = {f"{name}.weight": [f"{other}.weight"] for name, other in names.items()}
            wanted |= {f"transformer_layer.mlp.{name}.linear_fc1.weight": [f"mlp.{other}.{half}_proj.weight" for half in ("gate", "up")] for name, other in
                       [("shared_experts", "shared_experts")] + [(f"experts.local_experts.{e}", f"experts.{e}") for e in range(experts)]}
            wanted["transformer_layer.mlp.router.expert_bias"] = ["mlp.gate.e_score_correction_bias"]
            for layer in range(mtp):
                parameters = {name: value for name, value in found.mtp.layers[layer].state_dict().items() if value is not None and "_extra_state" not in name}
                parameters.pop("transformer_layer.mlp.router.local_tokens_per_expert", None)
                assert set(parameters) == set(wanted), set(parameters) ^ set(wanted)
                for name, keys in wanted.items():
                    expected = torch.cat([tensors[f"model.layers.{layers + layer}.{key}"] for key in keys])
                    assert torch.equal(parameters[name], expected), name

        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "model").mkdir()
            safetensors.torch.save_file(tensors, root / "model" / "model.safetensors", {"format": "pt"})
            (root / "model" / "config.json").write_text(json.dumps(config))
            tool.run("convert", root / "model", root / "megatron", "--map", "auto", "--set", "names=local", "--roundtrip-check")
            run_ranks(1, loads)
            tool.run("convert", root / "megatron", root / "back", "--map", "deepseek_v3")
            back = safetensors.torch.load_file(root / "back" / "model.safetensors")
            copies = {f"model.layers.{layer}.{name}.weight" for layer in range(layers, layers + mtp) for name in ("embed_tokens", "shared_head.head")}
            self.assertEqual(set(back), set(tensors) - copies)
            for key, value in back.items():
                self.assertTrue(torch.equal(value, tensors[key]), key)

    def test_glm_4_5_loads(self):
        """Dense layers, layers with experts, and one for multi-token prediction, all with attention of heads."""
        def loads(rank: int) -> None:
            parallel_state.initialize_model_parallel()
            config = TransformerConfig(num_layers=3, mtp_num_layers=1, hidden_size=32, num_attention_heads=4, num_query_groups=2, kv_channels=16, ffn_hidden_size=48,
                                       qk_layernorm=True, add_qkv_bias=True, num_moe_experts=4, moe_ffn_hidden_size=16, moe_shared_expert_intermediate_size=32,
                                       moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid", moe_layer_freq=[0, 1, 1], normalization="RMSNorm",
                                       add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu, use_cpu_initialization=True,
                                       perform_initialization=False)
            spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
            predict = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
            found = GPTModel(config, spec, vocab_size=128, max_sequence_length=32, share_embeddings_and_output_weights=False, position_embedding_type="rope", mtp_block_spec=predict)
            loaded = dist_checkpointing.load(found.bfloat16().sharded_state_dict(), folder + "/megatron", strict=StrictHandling.RAISE_UNEXPECTED)
            assert set(dict(found.named_parameters())) <= set(loaded)

        with tempfile.TemporaryDirectory() as folder:
            tool.run("convert", tool.ROOT / "tests/data/hf_pairs/glm4_moe/hf", folder + "/megatron", "--map", "auto", "--set", "names=local")
            run_ranks(1, loads)


    def test_megatron_builds_llama_nemotron_from_the_args_and_loads_it(self):
        def loads(rank: int) -> None:
            parallel_state.initialize_model_parallel()
            args = dist_checkpointing.load_common_state_dict(folder + "/megatron")["args"]
            config = HeterogeneousTransformerConfig(
                **{name: getattr(args, name) for name in ("num_layers", "hidden_size", "num_attention_heads", "kv_channels", "heterogeneous_layers_config_encoded_json")},
                normalization="RMSNorm", add_bias_linear=False, gated_linear_unit=True, activation_func=torch.nn.functional.silu, use_cpu_initialization=True,
                perform_initialization=False)
            found = GPTModel(config, get_gpt_heterogeneous_layer_spec(config), vocab_size=128, max_sequence_length=32, share_embeddings_and_output_weights=False,
                             position_embedding_type="rope").bfloat16()
            made, wanted = (dist_checkpointing.load(found.sharded_state_dict(), place, strict=StrictHandling.RAISE_UNEXPECTED)
                            for place in (folder + "/megatron", str(PAIRS / "llama_nemotron" / "mcore")))
            assert all(torch.equal(made[name], wanted[name]) for name in dict(found.named_parameters()))

        with tempfile.TemporaryDirectory() as folder:
            tool.run("convert", PAIRS / "llama_nemotron" / "hf", folder + "/megatron", "--map", "auto")
            run_ranks(1, loads)

    def test_mixers_of_mamba_load(self):
        wanted = safetensors.torch.load_file(PAIRS / "nemotron_h" / "hf" / "model.safetensors")
        keys = ["in_proj.weight", "conv1d.weight", "conv1d.bias", "A_log", "D", "dt_bias", "norm.weight", "out_proj.weight"]

        def loads(rank: int) -> None:
            parallel_state.initialize_model_parallel()
            for layer in 0, 4:
                mixer = mamba_mixer()
                state = mixer.sharded_state_dict(f"decoder.layers.{layer}.mixer.")
                loaded = dist_checkpointing.load(state, str(root / "megatron"), strict=StrictHandling.RAISE_UNEXPECTED)
                parameters = dict(mixer.named_parameters())
                assert set(parameters) == set(keys), set(parameters) ^ set(keys)
                for key in keys:
                    assert torch.equal(loaded[f"decoder.layers.{layer}.mixer.{key}"].float(), wanted[f"backbone.layers.{layer}.mixer.{key}"].float()), key

        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            tool.run("convert", PAIRS / "nemotron_h" / "hf", root / "megatron", "--map", "auto", "--dtype", "float32")
            run_ranks(1, loads)


    @unittest.skipUnless("DCKPT_TRANSFORMERS" in os.environ, "DCKPT_TRANSFORMERS names no folder of packages")
    def test_gated_delta_nets_and_gated_attention_yield_what_those_of_transformers_do(self):
        self.enterContext(unittest.mock.patch.object(sys, "path", sys.path + [os.environ["DCKPT_TRANSFORMERS"]]))
        import transformers
        model = transformers.AutoModelForCausalLM.from_pretrained(PAIRS / "qwen3_next" / "hf", dtype=torch.float32).model
        inputs = torch.randn(1, LENGTH, 64)

        @torch.no_grad()
        def yields(rank: int) -> None:
            parallel_state.initialize_model_parallel()
            net, prefix = gated_delta_net(), "decoder.layers.0.self_attention."
            loaded = dist_checkpointing.load(net.sharded_state_dict(prefix), str(root / "megatron"), strict=StrictHandling.RAISE_UNEXPECTED)
            net.load_state_dict({key: loaded[prefix + key] for key in net.state_dict()})
            with unittest.mock.patch.object(gated_delta_net_module, "l2norm", l2norm, create=True):
                made = net(inputs.transpose(0, 1), None)[0].transpose(0, 1)
            torch.testing.assert_close(made, model.layers[0].linear_attn(inputs), rtol=1e-4, atol=1e-4)

            weight = dist_checkpointing.load_plain_tensors(str(root / "megatron"))["decoder.layers.2.self_attention.linear_qkv.weight"]
            made = [part.reshape(1, LENGTH, -1) for part in (inputs @ weight.T).view(1, LENGTH, 2, 96).split([32, 32, 16, 16], -1)]     # as Megatron's attention divides it
            attention = model.layers[2].self_attn
            query, gate = attention.q_proj(inputs).view(1, LENGTH, 4, 32).chunk(2, -1)
            for part, wanted in zip(made, [query.flatten(2), gate.flatten(2), attention.k_proj(inputs), attention.v_proj(inputs)]):
                torch.testing.assert_close(part, wanted)

        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            tool.run("convert", PAIRS / "qwen3_next" / "hf", root / "megatron", "--map", "auto", "--dtype", "float32")
            run_ranks(1, yields)

    @unittest.skipUnless("DCKPT_TRANSFORMERS" in os.environ, "DCKPT_TRANSFORMERS names no folder of packages")
    def test_layers_of_a_vision_tower_yield_what_those_of_transformers_do(self):
        self.enterContext(unittest.mock.patch.object(sys, "path", sys.path + [os.environ["DCKPT_TRANSFORMERS"]]))
        import transformers
        blocks = transformers.AutoModelForImageTextToText.from_pretrained(PAIRS / "qwen3_vl" / "hf", dtype=torch.float32).model.visual.blocks
        inputs = wanted = torch.randn(LENGTH, 16)

        @torch.no_grad()
        def yields(rank: int) -> None:
            parallel_state.initialize_model_parallel()
            config = TransformerConfig(num_layers=3, hidden_size=16, num_attention_heads=2, ffn_hidden_size=24, layernorm_epsilon=1e-6, add_bias_linear=True, hidden_dropout=0.0,
                                       attention_dropout=0.0, activation_func=functools.partial(torch.nn.functional.gelu, approximate="tanh"), use_cpu_initialization=True,
                                       perform_initialization=False)
            spec = get_gpt_layer_local_spec(normalization="LayerNorm")
            spec.submodules.self_attention.params = {"attn_mask_type": AttnMaskType.no_mask}
            layers = TransformerBlock(config, spec, post_layer_norm=False).eval()
            prefix = "vision_model.decoder."
            loaded = dist_checkpointing.load(layers.sharded_state_dict(prefix), folder + "/megatron", strict=StrictHandling.RAISE_UNEXPECTED)
            layers.load_state_dict({key: loaded[prefix + key] for key in layers.state_dict()})
            with unittest.mock.patch("megatron.core.tensor_parallel.get_cuda_rng_tracker", NoTracker):
                made = layers(inputs[:, None], attention_mask=None)[:, 0]
            torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)

        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            tool.run("convert", PAIRS / "qwen3_vl" / "hf", folder + "/megatron", "--map", "auto", "--dtype", "float32")
            for block in blocks:    # positions turn nothing
                wanted = block(wanted, cu_seqlens=torch.tensor([0, LENGTH], dtype=torch.int32), position_embeddings=(torch.ones(LENGTH, 8), torch.zeros(LENGTH, 8)))
            run_ranks(1, yields)


class NoTracker:
    """Of random numbers on a GPU."""
    fork = contextlib.nullcontext


class Norm(torch.nn.Module):
    """Has the weight of one that mamba_ssm would compute."""
    def __init__(self, size, **_):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))


def mamba_mixer() -> torch.nn.Module:
    """The mixer of nemotron_h's pair, with stand-ins for what computes."""
    mixer = mamba_mixer_module
    with unittest.mock.patch.multiple(mixer, HAVE_MAMBA_SSM=True, ExtendedRMSNorm=Norm, get_cuda_rng_tracker=NoTracker):
        config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4, mamba_num_heads=4, mamba_head_dim=8, mamba_num_groups=2, mamba_state_dim=8,
                                   use_cpu_initialization=True, perform_initialization=False, add_bias_linear=False)
        parts = mixer.MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear)
        return mixer.MambaMixer(config, parts, 64, pg_collection=ProcessGroupCollection.use_mpu_process_groups())


def l2norm(tensor: torch.Tensor) -> torch.Tensor:
    """Stands in for fla's."""
    return tensor * torch.rsqrt(tensor.square().sum(-1, keepdim=True) + 1e-6)


class ZeroCenteredNorm(torch.nn.Module):
    """Stands in for Transformer Engine's with layernorm_zero_centered_gamma."""
    def __init__(self, config, hidden_size, eps):
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.zeros(hidden_size)), eps

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * torch.rsqrt(tensor.square().mean(-1, keepdim=True) + self.eps) * (1 + self.weight)


def gated_delta_net() -> torch.nn.Module:
    """That of qwen3_next's pair, which computes with torch alone."""
    module = gated_delta_net_module
    with unittest.mock.patch.multiple(module, HAVE_FLA=True, get_cuda_rng_tracker=NoTracker):
        config = TransformerConfig(num_layers=1, hidden_size=64, num_attention_heads=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=12,
                                   linear_conv_kernel_dim=4, activation_func=torch.nn.functional.silu, layernorm_epsilon=1e-6, use_cpu_initialization=True, perform_initialization=False,
                                   add_bias_linear=False)
        config.deterministic_mode = True    # set here, for its other checks are about GPUs
        parts = module.GatedDeltaNetSubmodules(in_proj=ColumnParallelLinear, out_norm=ZeroCenteredNorm, out_proj=RowParallelLinear)
        return module.GatedDeltaNet(config, parts, layer_number=1, pg_collection=ProcessGroupCollection.use_mpu_process_groups())


def megatron_with_mtp(layers: int, mtp: int, experts: int, hidden: int, heads: int) -> GPTModel:
    """DeepSeek V3 of local layers. Their core attention cannot do latent attention, but it has no parameters."""
    build = DotProductAttention.__init__
    DotProductAttention.__init__ = lambda self, *words, k_channels=None, v_channels=None, **named: build(self, *words, **named)
    for name in "TELinear", "TEColumnParallelLinear":   # stand-ins of types, where there is no Transformer Engine
        setattr(multi_latent_attention, name, type(name, (), {}))
    config = MLATransformerConfig(num_layers=layers, mtp_num_layers=mtp, hidden_size=hidden, num_attention_heads=heads, multi_latent_attention=True, q_lora_rank=24,
                                  kv_lora_rank=16, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=12, qk_layernorm=True, rope_type="rope", apply_rope_fusion=False,
                                  num_moe_experts=experts, moe_ffn_hidden_size=16, moe_shared_expert_intermediate_size=16, moe_router_enable_expert_bias=True,
                                  moe_router_score_function="sigmoid", moe_layer_freq=1, normalization="RMSNorm", add_bias_linear=False,
                                  gated_linear_unit=True, activation_func=torch.nn.functional.silu, use_cpu_initialization=True, perform_initialization=False)
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm")
    predict = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    return GPTModel(config, spec, vocab_size=128, max_sequence_length=32, share_embeddings_and_output_weights=False, position_embedding_type="rope", mtp_block_spec=predict)
