#include "mapping/planning/reformulation.h"

#include "mapping/base/error.h"

namespace dckpt {

Shape reformulated_size(ShapeView shape, ShapeView fragmentation) {
  Shape size = Shape(fragmentation);
  std::int64_t cell = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) cell *= shape[axis] / fragmentation[axis];
  size.push_back(cell);
  return size;
}

bool may_be_reformulated(ShapeView size, ShapeView shape) noexcept {
  if (size.size() != shape.size() + 1) return false;
  std::int64_t cell = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (size[axis] <= 0 || shape[axis] % size[axis] != 0) return false;
    cell *= shape[axis] / size[axis];
  }
  return size.back() == cell;
}

Shape reformulated_cell_shape(const TensorStorageMetadata& tensor) {
  const Shape& shape = *tensor.flattened_shape;
  if (!may_be_reformulated(tensor.size, shape)) {
    throw_error(ErrorCode::kCorrupt, {.key = tensor.key},
                "the stored size {} of a flattened tensor does not fit its original shape {} "
                "(expected: pieces per axis, then the elements of one piece)",
                to_string(tensor.size), to_string(shape));
  }
  Shape cell(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    cell[axis] = shape[axis] / tensor.size[axis];
  return cell;
}

}  // namespace dckpt
