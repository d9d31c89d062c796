"""make.py FOLDER: what NVIDIA ModelOpt 0.47.0 writes beside a checkpoint. Run with it, torch 2.11.0 and megatron-core 0.16.1 on PYTHONPATH, and tests/interop."""

import os
import sys

import megatron_peer as megatron
import modelopt.torch.quantization as mtq
import torch
from modelopt.torch.opt.plugins.mcore_dist_checkpointing import save_sharded_modelopt_state


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_fc1 = torch.nn.Linear(4, 4, bias=False)
        self.linear_fc2 = torch.nn.Linear(4, 4, bias=False)

    def forward(self, x):
        return self.linear_fc2(self.linear_fc1(x))


megatron.join()
model = TwoLayers()
mtq.quantize(model, mtq.INT8_DEFAULT_CFG, lambda m: m(torch.ones(1, 4)))
os.makedirs(sys.argv[1], exist_ok=True)
save_sharded_modelopt_state([model], sys.argv[1], ("torch_dist", 1))
