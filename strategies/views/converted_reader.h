#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "strategies/contract/reader.h"

namespace dckpt {

/// What becomes of the elements of a tensor: they are cast, and a constant is added before,
///
///   y = x + add
///
/// in float32, rounded to nearest, ties to even, and then to `dtype` likewise. With nothing to add,
/// they are cast only.
struct ElementConversion {
  DType dtype = DType::kFloat32;  ///< of the result
  float add = 0;
  /// Otherwise every element must come back, bit by bit, when the constant is subtracted again in
  /// the same way; whoever reads others gets an error. So does, in any case, who reads elements
  /// that are too large for `dtype`.
  bool rounded = false;
  friend bool operator==(const ElementConversion&, const ElementConversion&) = default;
};

/// The checkpoint `source` with tensors converted: a reader like any other. Elements are converted
/// while they are read, and only those that are wanted. `conversions`: by positions of tensors.
/// Throws CheckpointError (mismatch) for tensors whose elements cannot be cast so, or have nothing
/// that could be added to; when they are read, for elements that would not come back.
std::unique_ptr<CheckpointReader> converted_reader(
    std::unique_ptr<CheckpointReader> source,
    std::map<std::uint32_t, ElementConversion> conversions);

/// Whether elements of this dtype can be converted.
bool is_convertible(DType dtype) noexcept;

/// Whether elements of one dtype come back from another.
bool comes_back(DType from, DType through) noexcept;

}  // namespace dckpt
