#include "mapping/geometry/flat_range.h"

#include <algorithm>

namespace dckpt {
namespace {

/// Emits [begin, end) as a run of whole slices along `axis`; both bounds are multiples of the
/// slice's element count and lie inside one slice of the axis before.
void emit(ShapeView shape, ShapeView strides, std::size_t axis, std::int64_t begin,
          std::int64_t end, std::vector<FlatPiece>& out) {
  if (begin == end) return;
  Box box{Shape(shape.size()), Shape(shape.size(), 1)};
  std::int64_t rest = begin;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > axis) {
      box.sizes[i] = shape[i];
      continue;
    }
    box.offsets[i] = rest / strides[i];
    rest %= strides[i];
  }
  box.sizes[axis] = (end - begin) / strides[axis];
  out.push_back({std::move(box), begin});
}

}  // namespace

std::vector<FlatPiece> split_flat_range(ShapeView shape, std::int64_t begin, std::int64_t end) {
  std::vector<FlatPiece> pieces;
  if (begin == end) return pieces;
  if (shape.empty()) {
    pieces.push_back({});
    return pieces;
  }
  const Shape strides = row_major_strides(shape);
  // The first axis along which begin and end − 1 have different coordinates: all axes before it are
  // shared.
  std::size_t top = 0;
  while (top + 1 < shape.size() && begin / strides[top] == (end - 1) / strides[top]) ++top;
  // The pieces go up from begin to the next whole slice of ever larger slices, then along the body,
  // then down to end.
  std::int64_t at = begin;
  for (std::size_t axis = shape.size(); axis-- > top + 1;) {
    const std::int64_t slice = strides[axis - 1];
    const std::int64_t next = (at + slice - 1) / slice * slice;
    emit(shape, strides, axis, at, next, pieces);
    at = next;
  }
  const std::int64_t body_end = end / strides[top] * strides[top];
  emit(shape, strides, top, at, body_end, pieces);
  at = body_end;
  for (std::size_t axis = top + 1; axis < shape.size(); ++axis) {
    const std::int64_t next = end / strides[axis] * strides[axis];
    emit(shape, strides, axis, at, next, pieces);
    at = next;
  }
  return pieces;
}

}  // namespace dckpt
