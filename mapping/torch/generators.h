#pragma once

#include "mapping/state/value.h"

namespace torch::nn {
class Module;
}

namespace dckpt::torch {

/// Returns the states of the default generators of the CPU ("cpu") and of the GPUs on which the
/// module has parameters or buffers ("cuda", in ascending order), as tensors.
Value generator_states(const ::torch::nn::Module& module);

/// Throws CheckpointError (mismatch), without changing anything, if the state is of another number
/// of GPUs or is not a state of generators.
void set_generator_states(const ::torch::nn::Module& module, const Value& states);

}  // namespace dckpt::torch
