#include "dist_checkpointing/torch/module_checkpoint.h"

#include "mapping/torch/known_optimizer.h"

namespace dckpt::torch {

SaveReport save(const ::torch::nn::Module& module, const ::torch::optim::Optimizer& optimizer,
                const Location& location, const Policy& policy, const ModuleStateOptions& options) {
  return dckpt::save(sharded_state(module, optimizer, options), location, policy.save);
}

LoadReport load(::torch::nn::Module& module, ::torch::optim::Optimizer& optimizer,
                const Location& location, const Policy& policy, const ModuleStateOptions& options) {
  require_same_optimizer(optimizer, options, load_common_state(location));
  StateDict state = sharded_state(module, optimizer, options);
  LoadReport report = dckpt::load(state, location, policy.load);
  restore(module, optimizer, state, options);
  return report;
}

}  // namespace dckpt::torch
