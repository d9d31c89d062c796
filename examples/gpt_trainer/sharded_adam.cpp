#include "sharded_adam.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace gpt {

ShardedAdam::ShardedAdam(const std::vector<Parameter>& parameters, const Group& data,
                         AdamOptions options)
    : data_(data), options_(options) {
  std::int64_t elements = 0;
  for (const Parameter& parameter : parameters) elements += parameter.tensor.numel();
  const std::int64_t range = (elements + data.size() - 1) / data.size();
  params_ = at::zeros(
      {range * data.size()},
      parameters.front().tensor.device());  // the last range may end after the last parameter
  grads_ = at::zeros_like(params_);

  const std::int64_t range_begin = range * data.rank();
  std::int64_t first = 0;
  for (const Parameter& parameter : parameters) {
    at::Tensor tensor = parameter.tensor;
    const std::int64_t size = tensor.numel();
    const at::Tensor place = params_.narrow(0, first, size).view(tensor.sizes());
    place.copy_(tensor.detach());
    tensor.set_data(place);
    tensor.mutable_grad() = grads_.narrow(0, first, size).view(tensor.sizes());
    const std::int64_t begin = std::max(first, range_begin),
                       end = std::min(first + size, range_begin + range);
    if (begin < end)
      fragments_.push_back({parameter, begin - first, end - first, begin - range_begin});
    first += size;
  }
  main_params_ = params_.narrow(0, range_begin, range).clone();
  exp_avg_ = at::zeros_like(main_params_);
  exp_avg_sq_ = at::zeros_like(main_params_);
}

void ShardedAdam::zero_grad() {
  grads_.zero_();
}

void ShardedAdam::step() {
  ++steps_;
  at::Tensor grad = at::empty_like(main_params_);
  data_.reduce_scatter(grad, grads_);
  grad /= data_.size();
  exp_avg_.mul_(options_.beta1).add_(grad, 1 - options_.beta1);
  exp_avg_sq_.mul_(options_.beta2).addcmul_(grad, grad, 1 - options_.beta2);
  const auto steps = static_cast<double>(steps_);
  const at::Tensor deviation =
      (exp_avg_sq_ / (1 - std::pow(options_.beta2, steps))).sqrt_().add_(options_.epsilon);
  main_params_.addcdiv_(exp_avg_, deviation,
                        -options_.learning_rate / (1 - std::pow(options_.beta1, steps)));
  data_.all_gather(params_, main_params_);
}

}  // namespace gpt
