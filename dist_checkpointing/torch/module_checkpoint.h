#pragma once

#include "configs/policy/policy.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/api.h"
#include "mapping/torch/module_state.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {
namespace torch {

/// Saves sharded_state() with dckpt::save(): the whole checkpoint of a job of one rank.
SaveReport save(const ::torch::nn::Module& module, const ::torch::optim::Optimizer& optimizer,
                const Location& location, const Policy& policy = {},
                const ModuleStateOptions& options = {});

/// Loads with sharded_state(), dckpt::load() and restore(). The checkpoint may come from any number
/// of ranks. Throws CheckpointError as these do; a checkpoint of another kind of optimizer is
/// refused before anything is loaded.
LoadReport load(::torch::nn::Module& module, ::torch::optim::Optimizer& optimizer,
                const Location& location, const Policy& policy = {},
                const ModuleStateOptions& options = {});

}  // namespace torch
}  // namespace dckpt
