#include "dist_checkpointing/load/edge_padding.h"

#include <algorithm>

#include "mapping/geometry/strided_copy.h"

namespace dckpt {

std::optional<Box> nearest_stored(const Box& box, ShapeView shape) {
  Box inside = box;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis] == 0 || box.sizes[axis] == 0) return std::nullopt;
    inside.offsets[axis] = std::min(box.offsets[axis], shape[axis] - 1);
    inside.sizes[axis] =
        std::clamp<std::int64_t>(shape[axis] - box.offsets[axis], 1, box.sizes[axis]);
  }
  return inside;
}

void pad_with_edge(const EdgePadding& padding) {
  const std::size_t item = item_size(padding.tensor.dtype());
  std::byte* const data = padding.tensor.mutable_data();
  Shape sizes = padding.filled;
  for (std::size_t axis = 0; axis < sizes.size();
       ++axis) {  // axes before this one are complete, those behind it are as they were read
    const std::int64_t filled = sizes[axis];
    const std::int64_t stride = padding.strides[axis];
    sizes[axis] = padding.sizes[axis] - filled;
    Shape from = padding.strides;
    from[axis] = 0;
    if (sizes[axis] > 0)
      strided_copy(sizes, item, data, {(filled - 1) * stride, from}, data,
                   {filled * stride, padding.strides});
    sizes[axis] = padding.sizes[axis];
  }
  if (!padding.range) return;
  const Tensor& destination = padding.range->destination;
  strided_copy(destination.shape(), item, data, {padding.range->begin, Shape{1}},
               destination.mutable_data(), {0, destination.strides()});
}

}  // namespace dckpt
