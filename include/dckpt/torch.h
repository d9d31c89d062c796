#pragma once

/// For trainers: the whole library and torch tensors in it. Link dckpt::torch.

#include "dckpt/dist_checkpointing.h"
#include "mapping/torch/tensor.h"
