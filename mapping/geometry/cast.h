#pragma once

#include <cstddef>

#include "mapping/geometry/dtype.h"
#include "mapping/geometry/strided_copy.h"

// Conversion of elements from one dtype to another, with the results of torch's Tensor.to().
//
//   floating types   float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz, float16,
//                    bfloat16, float32 and float64 into each other: rounded to nearest, ties to
//                    even. Overflow gives infinity, or NaN where the type has none. NaN
//                    stays NaN; its payload may change. float64 is rounded to float32 first, also
//                    for narrower types.
//   complex types    into each other, real and imaginary part as above
//   integer types    into a type that holds all values: int32 to int64, uint8 to int16, not int64
//                    to int32
//
// Nothing else is converted: the digits that a float loses as an integer, or a large integer as a
// float, are not a rounding error. Packed, scale and quantized types are bytes here.

namespace dckpt {

/// Returns whether elements can be converted. True if the types are the same.
bool can_cast(DType from, DType to) noexcept;

/// Converts `count` elements, little-endian, of any alignment; the ranges do not overlap. Requires
/// can_cast(from, to).
void cast_elements(DType from, const std::byte* source, DType to, std::byte* destination,
                   std::size_t count) noexcept;

/// Copies like strided_copy, and converts the elements on the way.
void strided_cast(ShapeView sizes, DType from, const std::byte* source,
                  const StridedView& source_view, DType to, std::byte* destination,
                  const StridedView& destination_view);

/// Reads an element of one of the floating types above as float (float64 is rounded).
float load_float(DType dtype, const std::byte* element) noexcept;

/// Returns the position of the first of `count` elements that was too large for the floating type
/// it was cast to: infinite in `cast` but not in `source`. Returns `count` if there is none.
std::size_t first_too_large(DType from, const std::byte* source, DType to, const std::byte* cast,
                            std::size_t count) noexcept;

}  // namespace dckpt
