#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "strategies/contract/reader.h"

namespace dckpt {

/// A conversion of a tensor's elements. A constant is added,
///
///   y = x + add
///
/// in float32, rounded to nearest, ties to even, and the sum is cast to `dtype` likewise. Without a
/// constant, elements are only cast.
struct ElementConversion {
  DType dtype = DType::kFloat32;  ///< dtype of the result
  float add = 0;
  /// If false, every element must come back, bit by bit, when the constant is subtracted again in
  /// the same way; reading one that does not is an error. Reading an element that is too large for
  /// `dtype` is always an error.
  bool rounded = false;
  friend bool operator==(const ElementConversion&, const ElementConversion&) = default;
};

/// Returns the checkpoint `source` with tensors converted, as a reader like any other. Elements are
/// converted while they are read, and only the requested ones. `conversions` are keyed by positions
/// of tensors. Throws CheckpointError (mismatch) for tensors whose elements cannot be cast in this
/// way or added to; when they are read, for elements that would not come back.
std::unique_ptr<CheckpointReader> converted_reader(
    std::unique_ptr<CheckpointReader> source,
    std::map<std::uint32_t, ElementConversion> conversions);

/// Returns whether elements of this dtype can be converted.
bool is_convertible(DType dtype) noexcept;

/// Returns whether elements of one dtype come back from another.
bool comes_back(DType from, DType through) noexcept;

}  // namespace dckpt
