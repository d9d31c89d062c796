"""The example trainer runs under torchrun, and PyTorch and Megatron-Core load what it saved. A model and an optimizer in plain PyTorch that take the checkpoint
over have the losses that the trainer goes on with."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import megatron_peer as megatron
import torch
import torch_peer
from tool import ROOT
from torch.nn import functional

EXAMPLE = ROOT / "examples" / "gpt_trainer"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node"]
LAYERS, HEADS, SEQUENCE, BATCH = 4, 4, 64, 16


def train(processes: int, *options: object) -> dict[int, float]:
    """Iteration → loss."""
    command = [*TORCHRUN, str(processes), os.environ["DCKPT_GPT_TRAINER"], "--text", EXAMPLE / "coriolanus.txt", *options]
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-4000:])
    words = [line.split() for line in done.stdout.splitlines()]
    return {int(line[1]): float(line[3]) for line in words if len(line) == 4 and line[0] == "iteration"}


def scramble(value: int) -> int:
    """SplitMix64"""
    mask = 2**64 - 1
    value = (value + 0x9E3779B97F4A7C15) & mask
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ value >> 27) * 0x94D049BB133111EB & mask
    return value ^ value >> 31


def batch(iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
    text = (EXAMPLE / "coriolanus.txt").read_bytes()
    starts = [scramble(sample) % (len(text) - SEQUENCE) for sample in range((iteration - 1) * BATCH, iteration * BATCH)]
    bytes_ = torch.tensor([list(text[start:start + SEQUENCE + 1]) for start in starts])
    return bytes_[:, :-1], bytes_[:, 1:]


def loss(weights: dict[str, torch.Tensor], iteration: int) -> torch.Tensor:
    """The whole model, in plain PyTorch."""
    def norm(x, name, *layer):
        return functional.layer_norm(x, x.shape[-1:], weights[name + ".weight"][layer], weights[name + ".bias"][layer])

    def linear(x, name, layer):
        return functional.linear(x, weights[f"decoder.layers.{name}.weight"][layer], weights[f"decoder.layers.{name}.bias"][layer])

    inputs, targets = batch(iteration)
    hidden = weights["embedding.word_embeddings.weight"][inputs] + weights["embedding.position_embeddings.weight"]
    for layer in range(LAYERS):
        qkv = linear(norm(hidden, "decoder.layers.input_layernorm", layer), "self_attention.linear_qkv", layer)
        query, key, value = qkv.unflatten(-1, (HEADS, 3, -1)).permute(3, 0, 2, 1, 4)
        scores = (query @ key.mT / key.shape[-1] ** 0.5).masked_fill(torch.ones(SEQUENCE, SEQUENCE).triu(1).bool(), -torch.inf)
        hidden = hidden + linear((scores.softmax(-1) @ value).transpose(1, 2).flatten(2), "self_attention.linear_proj", layer)
        inner = functional.gelu(linear(norm(hidden, "decoder.layers.pre_mlp_layernorm", layer), "mlp.linear_fc1", layer))
        hidden = hidden + linear(inner, "mlp.linear_fc2", layer)
    logits = norm(hidden, "decoder.final_layernorm") @ weights["output_layer.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def losses_from(tensors: dict[str, torch.Tensor], first: int, last: int) -> dict[int, float]:
    """What PyTorch's own optimizer makes of the weights and moments after the iteration before `first`."""
    weights = {key: tensor.requires_grad_() for key, tensor in tensors.items() if not key.startswith("optimizer.")}
    adam = torch.optim.Adam(weights.values(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for key, weight in weights.items():
        adam.state[weight] = {"step": torch.tensor(first - 1.0), **{kind: tensors[f"optimizer.state.{kind}.{key}"] for kind in ("exp_avg", "exp_avg_sq")}}
    losses = {}
    for iteration in range(first, last + 1):
        adam.zero_grad()
        value = loss(weights, iteration)
        value.backward()
        adam.step()
        losses[iteration] = value.item()
    return losses


class Trainer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.checkpoints = pathlib.Path(folder.name)
        megatron.join()
        self.addCleanup(torch.distributed.destroy_process_group)

    def test_other_programs_go_on_with_the_same_losses(self):
        saving = ["--checkpoints", self.checkpoints, "--save-every", 3, "--policy", EXAMPLE / "policy.yaml"]
        before = train(4, *saving, "--iterations", 3, "--tp", 2)
        after = train(2, *saving, "--iterations", 6, "--pp", 2)
        self.assertEqual((list(before), list(after)), ([1, 2, 3], [4, 5, 6]))

        checkpoint = self.checkpoints / "iter_0000003"
        tensors, _ = torch_peer.load_all(checkpoint)
        self.assertEqual(torch_peer.digests(megatron.load_plain_tensors(checkpoint)), torch_peer.digests(tensors))
        self.assertEqual(megatron.load_common(checkpoint)["iteration"], 3)
        weights = {key: tensor.shape for key, tensor in tensors.items() if not key.startswith("optimizer.")}
        for kind in ("exp_avg", "exp_avg_sq"):  # the ranges of the optimizer's ranks make up what the pieces of the model's ranks do
            of_kind = {key: tensors[f"optimizer.state.{kind}.{key}"].shape for key in weights}
            self.assertEqual(of_kind, weights)

        for iteration, value in losses_from(tensors, 4, 6).items():
            self.assertAlmostEqual(value, after[iteration], delta=1e-5)
