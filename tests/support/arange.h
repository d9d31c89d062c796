#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mapping/geometry/box.h"
#include "mapping/state/tensor.h"

namespace dckpt {

/// Returns a box of a global float32 tensor of this shape whose element i has the value i.
inline Tensor part_of_arange(const Shape& shape, const Box& box) {
  Tensor part = Tensor::empty(DType::kFloat32, box.sizes);
  const Shape strides = row_major_strides(shape);
  const Shape local = row_major_strides(box.sizes);
  auto* const out = reinterpret_cast<float*>(part.data());
  for (std::int64_t i = 0; i < part.numel(); ++i) {
    std::int64_t global = 0;
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      global += (box.offsets[axis] + i / local[axis] % box.sizes[axis]) * strides[axis];
    out[i] = static_cast<float>(global);
  }
  return part;
}

/// Returns the whole tensor.
inline Tensor arange(const Shape& shape) {
  return part_of_arange(shape, whole(shape));
}

/// Returns a destination in which every element that a load leaves out is visible.
inline Tensor untouched(const Shape& shape) {
  Tensor tensor = Tensor::empty(DType::kFloat32, shape);
  std::ranges::fill(tensor.bytes(), std::byte{0xFF});
  return tensor;
}

}  // namespace dckpt
