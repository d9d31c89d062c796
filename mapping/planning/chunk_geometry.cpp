#include "mapping/planning/chunk_geometry.h"

#include "mapping/planning/reformulation.h"

namespace dckpt {

ChunkGeometry::ChunkGeometry(const TensorStorageMetadata& tensor, std::size_t chunk)
    : tensor_(tensor), chunk_(tensor.chunks[chunk]) {
  if (tensor.flattened_shape) cell_ = reformulated_cell_shape(tensor);
  strides_ = row_major_strides(tensor.flattened_shape ? cell_ : chunk_.sizes);
}

std::optional<StridedView> ChunkGeometry::find(const Box& box) const {
  if (tensor_.flattened_shape) return find_reformulated(box);
  StridedView view{0, strides_};
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    const std::int64_t begin = box.offsets[axis] - chunk_.offsets[axis];
    if (begin < 0 || begin + box.sizes[axis] > chunk_.sizes[axis]) return std::nullopt;
    view.offset += begin * strides_[axis];
  }
  return view;
}

/// Assumes that the chunk holds the same flat range of every piece in a box of pieces, one after
/// the other.
std::optional<StridedView> ChunkGeometry::find_reformulated(const Box& box) const {
  std::int64_t piece = 0, first = 0, last = 0;
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    const std::int64_t cell = box.offsets[axis] / cell_[axis];
    const std::int64_t begin = box.offsets[axis] % cell_[axis];
    const std::int64_t position = cell - chunk_.offsets[axis];
    if (begin + box.sizes[axis] > cell_[axis] || position < 0 || position >= chunk_.sizes[axis])
      return std::nullopt;
    piece = piece * chunk_.sizes[axis] + position;
    first += begin * strides_[axis];
    last += (begin + box.sizes[axis] - 1) * strides_[axis];
  }
  const std::int64_t begin = chunk_.offsets.back();
  const std::int64_t length = chunk_.sizes.back();
  if (first < begin || last >= begin + length) return std::nullopt;
  return StridedView{piece * length + first - begin, strides_};
}

std::optional<Shape> regular_chunk(const TensorStorageMetadata& tensor) {
  if (tensor.flattened_shape || tensor.chunks.size() == 0 || numel(tensor.size) == 0)
    return std::nullopt;
  const Shape cell = Shape(tensor.chunks.sizes(0));
  for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
    if (!equal(tensor.chunks.sizes(chunk), cell)) return std::nullopt;
    for (std::size_t axis = 0; axis < cell.size(); ++axis) {
      if (tensor.chunks.offsets(chunk)[axis] % cell[axis] != 0 ||
          tensor.size[axis] % cell[axis] != 0)
        return std::nullopt;
    }
  }
  return cell;
}

}  // namespace dckpt
