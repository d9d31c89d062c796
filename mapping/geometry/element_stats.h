#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "mapping/base/api.h"
#include "mapping/base/fields.h"
#include "mapping/geometry/dtype.h"

namespace DCKPT_API dckpt {

/// Statistics of elements. NaN and infinite elements are counted and take no part in the rest.
/// Sums are in double precision; their last digits depend on the parts that were merged.
struct ElementStats {
  std::uint64_t count = 0;  ///< all elements
  std::uint64_t nan = 0;
  std::uint64_t infinite = 0;
  std::uint64_t zero = 0;
  std::uint64_t denormal = 0;  ///< in their own dtype
  double mean = 0;
  /// Sum of squared distances from the mean, in units of 4^exponent. The exponent is 0 unless
  /// elements of float64 are so large or so small that double does not hold their squares.
  double squares = 0;
  int exponent = 0;
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();

  std::uint64_t finite() const noexcept { return count - nan - infinite; }
  /// Returns the deviation of the whole population, not of a sample; 0 without finite elements.
  double deviation() const noexcept;
  double l2() const noexcept;
  /// Returns the largest absolute value; 0 without finite elements.
  double abs_max() const noexcept;
  /// Returns the distance of the furthest element from the mean, in deviations; 0 if all are equal.
  double furthest() const noexcept;

  /// Adds the elements of `other`.
  void merge(const ElementStats& other) noexcept;
};
constexpr auto fields(const ElementStats*) {
  using S = ElementStats;
  return std::tuple(Field(&S::count), Field(&S::nan), Field(&S::infinite), Field(&S::zero),
                    Field(&S::denormal), Field(&S::mean), Field(&S::squares), Field(&S::min),
                    Field(&S::max), Field(&S::exponent));
}

/// Returns whether elements of this type are real numbers: floating types, integers and bool. Not
/// complex, packed, scale and quantized types.
bool has_stats(DType dtype) noexcept;

/// Adds `count` elements, little-endian, of any alignment. Requires has_stats(dtype).
void add_elements(ElementStats& stats, DType dtype, const std::byte* elements,
                  std::size_t count) noexcept;

}  // namespace dckpt
