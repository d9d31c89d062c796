#include "mapping/geometry/box.h"

#include <algorithm>

#include "mapping/base/checked.h"
#include "mapping/base/format.h"

namespace dckpt {

bool is_valid(const Box& box) noexcept {
  if (box.offsets.size() != box.sizes.size()) return false;
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    if (box.offsets[axis] < 0 || box.sizes[axis] < 0) return false;
    if (!checked_add(box.offsets[axis], box.sizes[axis])) return false;
  }
  return true;
}

Box whole(ShapeView shape) {
  return {Shape(shape.size(), 0), Shape(shape)};
}

bool fits(const Box& box, ShapeView shape) noexcept {
  if (!is_valid(box) || box.dims() != shape.size()) return false;
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    if (box.offsets[axis] + box.sizes[axis] > shape[axis]) return false;
  }
  return true;
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  Box common{Shape(a.dims()), Shape(a.dims())};
  for (std::size_t axis = 0; axis < a.dims(); ++axis) {
    const std::int64_t first = std::max(a.offsets[axis], b.offsets[axis]);
    const std::int64_t last =
        std::min(a.offsets[axis] + a.sizes[axis], b.offsets[axis] + b.sizes[axis]);
    if (first >= last) return std::nullopt;
    common.offsets[axis] = first;
    common.sizes[axis] = last - first;
  }
  return common;
}

std::string to_string(const Box& box) {
  std::string out = "[";
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    if (axis > 0) out += ", ";
    out += str_format("{}:{}", box.offsets[axis], box.offsets[axis] + box.sizes[axis]);
  }
  return out + "]";
}

void BoxList::push_back(ShapeView offsets, ShapeView sizes) {
  data_.insert(data_.end(), offsets.begin(), offsets.end());
  data_.insert(data_.end(), sizes.begin(), sizes.end());
  ++count_;
}

}  // namespace dckpt
