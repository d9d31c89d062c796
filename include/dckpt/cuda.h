#pragma once

/// Tensors in CUDA memory are saved and loaded once register_cuda() has been called. Link
/// dckpt::cuda.

#include "dckpt/dist_checkpointing.h"
#include "strategies/device/cuda/runtime.h"
