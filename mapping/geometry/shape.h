#pragma once

#include <boost/container/small_vector.hpp>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Extents, offsets or strides, one per axis, in elements. Up to six axes live inside the object.
class Shape : public boost::container::small_vector<std::int64_t, 6> {
 public:
  using small_vector::small_vector;
  // These are not inline: they take a fifth of the time that most files compile, and GCC 12 warns
  // of them where it inlines them.
  Shape() noexcept;
  Shape(std::initializer_list<std::int64_t> extents);
  /// Copies the integers of a span, a vector or an array.
  template <typename Range>
  requires requires(const Range& range) {
    requires std::integral<std::remove_cvref_t<decltype(*range.data())>>;
    range.size();
  }
  Shape(const Range& extents) : small_vector(extents.begin(), extents.end()) {}
  Shape(const Shape& other);
  Shape(Shape&& other) noexcept;
  Shape& operator=(const Shape& other);
  Shape& operator=(Shape&& other) noexcept;
  ~Shape();

  operator std::span<const std::int64_t>() const noexcept { return {data(), size()}; }
};
using ShapeView = std::span<const std::int64_t>;

/// The largest number of axes that is read from a file or accepted from a caller.
inline constexpr std::size_t kMaxDims = 64;

/// Returns the product of the extents; 1 for no axes. Empty if an extent is negative or the product
/// does not fit in int64.
std::optional<std::int64_t> checked_numel(ShapeView shape) noexcept;

/// Returns the product of extents that are known to be sound (checked on entry to the library).
std::int64_t numel(ShapeView shape) noexcept;

/// Returns row-major strides in elements.
Shape row_major_strides(ShapeView shape);

/// Returns whether elements with these strides are row-major without gaps. Strides of axes with
/// extent 1 do not matter; nothing matters when there are no elements.
bool is_row_major(ShapeView shape, ShapeView strides) noexcept;

/// Returns text as Python prints a tuple: "()", "(3,)", "(2, 3)".
std::string to_string(ShapeView shape);

bool equal(ShapeView a, ShapeView b) noexcept;

}  // namespace dckpt
