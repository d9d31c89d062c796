#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"
#include "strategies/device/page_locked_pool.h"

namespace dckpt::testing {

inline constexpr std::int64_t kPieceFloats =
    static_cast<std::int64_t>(PageLockedPool::kPieceBytes / sizeof(float));

inline Tensor counting(Shape shape, float first = 0) {
  Tensor tensor = Tensor::empty(DType::kFloat32, std::move(shape));
  std::iota(tensor.data<float>(), tensor.data<float>() + tensor.numel(), first);
  return tensor;
}

inline Tensor transposed(const Tensor& tensor) {
  return {tensor.dtype(),
          {tensor.shape()[1], tensor.shape()[0]},
          {tensor.strides()[1], tensor.strides()[0]},
          tensor.mutable_data(),
          tensor.owner()};
}

inline StateDict state_of(const std::vector<Tensor>& tensors) {
  StateDict state = Value::dict();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string key = "weights." + std::to_string(i);
    state[key] = ShardedTensor::from_rank_offsets(key, tensors[i], {});
  }
  return state;
}

}  // namespace dckpt::testing
