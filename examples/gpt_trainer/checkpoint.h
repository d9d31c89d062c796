#pragma once

#include <dckpt/torch.h>

#include "model.h"
#include "sharded_adam.h"

namespace gpt {

/// Where this rank's tensors lie in the whole model: under Megatron's keys, without a trace of the
/// layout.
dckpt::torch::ModuleStateOptions layout_of(const Model& model, const ParallelState& parallel);

/// What is saved after `iteration` iterations, and what a checkpoint is loaded into.
dckpt::StateDict sharded_state(const Model& model, ShardedAdam& adam, const ParallelState& parallel,
                               std::int64_t iteration);

/// Takes over what was loaded. Returns the number of iterations behind it. Throws
/// std::runtime_error if the checkpoint is of another model.
std::int64_t resume(const dckpt::StateDict& loaded, Model& model, ShardedAdam& adam,
                    const ParallelState& parallel);

}  // namespace gpt
