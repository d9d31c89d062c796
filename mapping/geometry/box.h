#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/geometry/shape.h"

namespace DCKPT_API dckpt {

/// A rectangular part of a global tensor. Invariant (checked by `is_valid`): offsets and sizes have
/// the same length, are not negative, and offset + size does not overflow on any axis.
struct Box {
  Shape offsets;
  Shape sizes;

  std::size_t dims() const noexcept { return sizes.size(); }
  friend bool operator==(const Box&, const Box&) = default;
};

bool is_valid(const Box& box) noexcept;

/// Returns the box of the whole tensor.
Box whole(ShapeView shape);

/// Returns whether `box` lies inside a tensor of this shape. A box without elements may touch the
/// end.
bool fits(const Box& box, ShapeView shape) noexcept;

/// Returns the common part, empty if there is no element in common. Both must have the same number
/// of axes.
std::optional<Box> intersect(const Box& a, const Box& b);

/// Returns text such as "[0:4, 8:16]".
std::string to_string(const Box& box);

/// Many boxes of one tensor in one array: 16 bytes per axis and box, no allocation per box.
class BoxList {
 public:
  explicit BoxList(std::size_t dims = 0) : dims_(dims) {}

  std::size_t dims() const noexcept { return dims_; }
  std::size_t size() const noexcept { return count_; }
  bool empty() const noexcept { return count_ == 0; }
  void reserve(std::size_t boxes) { data_.reserve(boxes * dims_ * 2); }

  /// Both views must have `dims()` entries and must not point into this list.
  void push_back(ShapeView offsets, ShapeView sizes);
  void push_back(const Box& box) { push_back(box.offsets, box.sizes); }

  ShapeView offsets(std::size_t index) const noexcept {
    return {data_.data() + index * dims_ * 2, dims_};
  }
  ShapeView sizes(std::size_t index) const noexcept {
    return {data_.data() + index * dims_ * 2 + dims_, dims_};
  }
  Box operator[](std::size_t index) const { return {Shape(offsets(index)), Shape(sizes(index))}; }

  friend bool operator==(const BoxList&, const BoxList&) = default;

 private:
  std::size_t dims_;
  std::size_t count_ =
      0;  // kept apart from the array: boxes of a 0-dim tensor occupy no space in it
  std::vector<std::int64_t> data_;
};

}  // namespace dckpt
