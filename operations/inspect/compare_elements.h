#pragma once

#include <cstdint>
#include <optional>

#include "mapping/base/bytes.h"
#include "mapping/geometry/dtype.h"

namespace dckpt {

/// Accepts |a − b| ≤ absolute + relative·|b|; NaN equals NaN, infinities only themselves.
struct Tolerance {
  double relative = 0;
  double absolute = 0;
  bool accepts(double a, double b) const noexcept;
};

/// Compares two tensors of one dtype that arrive in pieces, in the same order on both sides.
class ElementComparison {
 public:
  /// Compares bit by bit if there is no tolerance.
  ElementComparison(DType dtype, std::optional<Tolerance> tolerance)
      : dtype_(dtype), tolerance_(tolerance) {}

  /// Requires views of the same size, a whole number of elements.
  void compare(ByteView a, ByteView b);

  struct First {
    std::uint64_t position = 0;  ///< in elements
    std::byte a[16];             ///< the element itself
    std::byte b[16];
  };
  const std::optional<First>& first() const noexcept { return first_; }
  std::uint64_t count() const noexcept { return count_; }
  /// Returns the largest finite |a − b| of the elements that differ.
  const std::optional<double>& max_abs() const noexcept { return max_abs_; }

 private:
  DType dtype_;
  std::optional<Tolerance> tolerance_;
  std::uint64_t position_ = 0;
  std::uint64_t count_ = 0;
  std::optional<First> first_;
  std::optional<double> max_abs_;
};

}  // namespace dckpt
