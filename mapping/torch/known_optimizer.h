#pragma once

#include "mapping/torch/module_state.h"
#include "mapping/torch/optimizer_kind.h"

namespace dckpt::torch {

/// Returns ModuleStateOptions::optimizer_kind, if it is set, or that of an optimizer of libtorch.
/// Throws CheckpointError (unsupported) if the optimizer is not known.
const OptimizerKind& kind_of(const ::torch::optim::Optimizer& optimizer,
                             const ModuleStateOptions& options);

/// Throws CheckpointError (mismatch) if state["optimizer"] is present and names another optimizer.
void require_same_optimizer(const ::torch::optim::Optimizer& optimizer,
                            const ModuleStateOptions& options, const Value& state);

}  // namespace dckpt::torch
