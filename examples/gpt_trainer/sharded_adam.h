#pragma once

#include <torch/optim/adam.h>

#include "group.h"

namespace gpt {

/// Adam whose state is shared out among data parallel ranks (ZeRO stage 1). The parameters lie one
/// after the other in one flat buffer, their gradients in another; each rank's optimizer has an
/// equal range of it, whose ends are anywhere inside parameters.
class ShardedAdam {
 public:
  /// Moves the parameters' elements and gradients into its buffers, on the device of the first of
  /// them. `data` must outlive it.
  ShardedAdam(const std::vector<at::Tensor>& parameters, const Group& data,
              const torch::optim::AdamOptions& options);

  void zero_grad();
  /// Averages the gradients over the group, updates the range of this rank, and collects the ranges
  /// of the others.
  void step();

  torch::optim::Adam& optimizer() { return *adam_; }

 private:
  const Group& data_;
  at::Tensor params_, grads_;  // of all elements
  at::Tensor range_;           // of the first, this rank's
  std::optional<torch::optim::Adam> adam_;
};

}  // namespace gpt
