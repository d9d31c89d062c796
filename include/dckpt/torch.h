#pragma once

/// For trainers: the whole library, torch tensors in it and communicators over process groups. Link
/// dckpt::torch.

#include "dckpt/dist_checkpointing.h"
#include "mapping/torch/tensor.h"
#include "strategies/comm/c10d/process_group.h"
