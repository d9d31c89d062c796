#include "dist_checkpointing/load/replicate.h"

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

void replicate(const Replication& replication) {
  const std::size_t item = item_size(replication.tensor.dtype());
  std::byte* const data = replication.tensor.data();
  Shape sizes = replication.filled;
  for (std::size_t axis = 0; axis < sizes.size();
       ++axis) {  // axes before this one are complete, those behind it are as they were read
    const std::int64_t filled = sizes[axis];
    const std::int64_t stride = replication.strides[axis];
    sizes[axis] = replication.sizes[axis] - filled;
    Shape from = replication.strides;
    from[axis] = 0;
    if (sizes[axis] > 0)
      strided_copy(sizes, item, data, {(filled - 1) * stride, from}, data,
                   {filled * stride, replication.strides});
    sizes[axis] = replication.sizes[axis];
  }
  if (!replication.range) return;
  const Tensor& destination = replication.range->destination;
  strided_copy(destination.shape(), item, data, {replication.range->begin, Shape{1}},
               destination.data(), {0, destination.strides()});
}

}  // namespace dckpt
