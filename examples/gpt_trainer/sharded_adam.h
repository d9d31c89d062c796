#pragma once

#include <vector>

#include "model.h"

namespace gpt {

struct AdamOptions {
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
};

/// Adam whose state is shared out among data parallel ranks (ZeRO stage 1). The parameters lie one
/// after the other in one flat buffer, their gradients in another; each rank owns an equal range of
/// it, whose ends are anywhere inside parameters, and keeps the moments of those elements only.
class ShardedAdam {
 public:
  /// Moves the parameters' elements and gradients into its buffers, on the device of the first of
  /// them. `data` must outlive it.
  ShardedAdam(const std::vector<Parameter>& parameters, const Group& data,
              AdamOptions options = {});

  void zero_grad();
  /// Averages the gradients over the group, updates the range of this rank, and collects the ranges
  /// of the others.
  void step();

  /// The elements of one parameter that this rank owns: [begin, end) of its flattened piece, from
  /// `offset` on in each of the flat tensors below.
  struct Fragment {
    const Parameter& parameter;
    std::int64_t begin = 0, end = 0, offset = 0;
  };
  const std::vector<Fragment>& fragments() const { return fragments_; }
  const at::Tensor& main_params() const { return main_params_; }
  const at::Tensor& exp_avg() const { return exp_avg_; }
  const at::Tensor& exp_avg_sq() const { return exp_avg_sq_; }
  std::int64_t steps() const { return steps_; }
  void set_steps(std::int64_t steps) { steps_ = steps; }

 private:
  const Group& data_;
  AdamOptions options_;
  std::vector<Fragment> fragments_;
  at::Tensor params_, grads_;                      // of all elements
  at::Tensor main_params_, exp_avg_, exp_avg_sq_;  // of this rank's range
  std::int64_t steps_ = 0;
};

}  // namespace gpt
