#include "sharded_adam.h"

#include <ATen/ATen.h>

namespace gpt {

ShardedAdam::ShardedAdam(const std::vector<at::Tensor>& parameters, const Group& data,
                         const torch::optim::AdamOptions& options)
    : data_(data) {
  std::int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) elements += parameter.numel();
  const std::int64_t range = (elements + data.size() - 1) / data.size();
  params_ =
      at::zeros({range * data.size()},
                parameters.front().device());  // the last range may end after the last parameter
  grads_ = at::zeros_like(params_);
  std::int64_t first = 0;
  for (at::Tensor parameter : parameters) {
    const at::Tensor place = params_.narrow(0, first, parameter.numel()).view(parameter.sizes());
    place.copy_(parameter.detach());
    parameter.set_data(place);
    parameter.mutable_grad() = grads_.narrow(0, first, parameter.numel()).view(parameter.sizes());
    first += parameter.numel();
  }
  range_ = params_.narrow(0, range * data.rank(), range);
  range_.mutable_grad() = at::empty_like(range_);
  adam_.emplace(std::vector<at::Tensor>{range_}, options);
}

void ShardedAdam::zero_grad() {
  grads_.zero_();
}

void ShardedAdam::step() {
  data_.reduce_scatter(range_.mutable_grad(), grads_);
  range_.mutable_grad() /= data_.size();
  adam_->step();
  data_.all_gather(params_, range_.clone());
}

}  // namespace gpt
