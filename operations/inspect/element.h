#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "mapping/geometry/dtype.h"

namespace dckpt {

/// The numeric interpretation of a dtype's elements.
enum class ElementKind : std::uint8_t {
  kBool,
  kInteger,  ///< quantized types count as their integers
  kReal,
  kComplex,
  kPacked,  ///< several values per element: only the bytes have a meaning here
};

ElementKind element_kind(DType dtype) noexcept;

/// One element, little-endian at `element`, widened without loss. A packed element yields its
/// bytes.
struct ComplexElement {
  double real = 0;
  double imag = 0;
};
using Element = std::variant<bool, std::int64_t, std::uint64_t, double, ComplexElement>;
Element load_element(DType dtype, const std::byte* element) noexcept;

/// Returns readable text: "true", "-3", "0.1", "nan", "(1, -2)".
std::string to_string(const Element& element);

/// Returns the shortest decimal text that reads back as the same double, with Python's spelling of
/// non-finite values ("nan", "inf", "-inf").
std::string shortest(double value);

}  // namespace dckpt
