#pragma once

#include <cstddef>
#include <span>

#include "mapping/geometry/dtype.h"

namespace dckpt {

/// Writes the float8_e4m3fn codes of values that share a scale, and returns the scale.
///
/// `values` have the precision of `dtype`: float32, bfloat16 or float16. If they are the products,
/// rounded to `dtype`, of such codes and a scale, and the largest code is at least 224, then the
/// products of the result are the same values. Otherwise the largest magnitude becomes 448. All
/// values must be finite.
float quantize_fp8(std::span<const float> values, DType dtype, std::byte* codes);

}  // namespace dckpt
