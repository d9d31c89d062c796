#include "mapping/geometry/shape.h"

#include <algorithm>

#include "mapping/base/checked.h"

namespace dckpt {

Shape::Shape() noexcept = default;
Shape::Shape(std::initializer_list<std::int64_t> extents) : small_vector(extents) {}
Shape::Shape(const Shape& other) = default;
Shape::Shape(Shape&& other) noexcept = default;
Shape& Shape::operator=(const Shape& other) = default;
Shape& Shape::operator=(Shape&& other) noexcept = default;
Shape::~Shape() = default;

std::optional<std::int64_t> checked_numel(ShapeView shape) noexcept {
  std::int64_t product = 1;
  bool zero = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    zero |= extent == 0;
  }
  if (zero) return 0;
  for (const std::int64_t extent : shape) {
    const auto next = checked_mul(product, extent);
    if (!next) return std::nullopt;
    product = *next;
  }
  return product;
}

std::int64_t numel(ShapeView shape) noexcept {
  // The other extents of a tensor without elements may have a product that does not fit.
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

Shape row_major_strides(ShapeView shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    strides[axis] = stride;
    stride = checked_mul(stride, std::max<std::int64_t>(shape[axis], 1))
                 .value_or(stride);  // it can only overflow where there are no elements
  }
  return strides;
}

bool is_row_major(ShapeView shape, ShapeView strides) noexcept {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  std::int64_t expected = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] != 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

std::string to_string(ShapeView shape) {
  std::string out = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis > 0) out += ", ";
    out += std::to_string(shape[axis]);
  }
  if (shape.size() == 1) out += ",";
  return out + ")";
}

bool equal(ShapeView a, ShapeView b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace dckpt
