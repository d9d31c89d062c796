#pragma once

#include <dckpt/torch.h>

#include "model.h"
#include "sharded_adam.h"

namespace gpt {

/// Where this rank's tensors lie in the whole model: under Megatron's keys, without a trace of the
/// layout. They share memory with the model and the optimizer. A checkpoint is loaded into this.
dckpt::StateDict sharded_state(const Model& model, const ShardedAdam& adam,
                               const ParallelState& parallel);

/// The same and what all ranks have in common: what is saved after `iteration` iterations.
dckpt::StateDict state_to_save(const Model& model, const ShardedAdam& adam,
                               const ParallelState& parallel, std::int64_t iteration);

/// Takes over what is not a tensor from a state that was loaded. Returns the number of iterations
/// behind it. Throws std::runtime_error if the checkpoint is of another model.
std::int64_t resume(const dckpt::StateDict& loaded, const Model& model, ShardedAdam& adam);

}  // namespace gpt
