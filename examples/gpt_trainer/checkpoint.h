#pragma once

#include <dckpt/torch.h>

#include "model.h"
#include "sharded_adam.h"

namespace gpt {

/// Returns the places of this rank's tensors in the whole model, under Megatron's keys and
/// independent of the layout.
dckpt::torch::ModuleStateOptions layout_of(const Model& model, const ParallelState& parallel);

/// Returns the state that is saved after `iteration` iterations, and that a checkpoint is loaded
/// into.
dckpt::StateDict sharded_state(const Model& model, ShardedAdam& adam, const ParallelState& parallel,
                               std::int64_t iteration);

/// Copies what was loaded into the model and the optimizer. Returns the number of completed
/// iterations. Throws std::runtime_error if the checkpoint is of another model.
std::int64_t resume(const dckpt::StateDict& loaded, Model& model, ShardedAdam& adam,
                    const ParallelState& parallel);

}  // namespace gpt
