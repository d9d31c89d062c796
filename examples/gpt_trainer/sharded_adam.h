#pragma once

#include <torch/optim/adam.h>

#include "group.h"

namespace gpt {

/// Adam with its state sharded over the data parallel ranks (ZeRO stage 1). The parameters are
/// stored one after the other in a flat buffer, their gradients in another. Each rank's optimizer
/// has an equal range of the buffer, whose ends may be inside parameters.
class ShardedAdam {
 public:
  /// Moves the parameters' elements and gradients into its buffers, on the device of the first
  /// parameter. `data` must outlive the object.
  ShardedAdam(const std::vector<at::Tensor>& parameters, const Group& data,
              const torch::optim::AdamOptions& options);

  void zero_grad();
  /// Averages the gradients over the group, updates the range of this rank, and gathers the ranges
  /// of the others.
  void step();

  torch::optim::Adam& optimizer() { return *adam_; }

 private:
  const Group& data_;
  at::Tensor params_, grads_;  // all elements
  at::Tensor range_;           // this rank's part of params_
  std::optional<torch::optim::Adam> adam_;
};

}  // namespace gpt
