#pragma once

/// The whole library for trainers, with torch tensors, modules and optimizers, and communicators
/// over process groups. Link dckpt::torch.

#include "dckpt/dist_checkpointing.h"
#include "dist_checkpointing/torch/module_checkpoint.h"
#include "mapping/torch/module_state.h"
#include "mapping/torch/tensor.h"
#include "strategies/comm/c10d/process_group.h"
