#pragma once

#include <complex>
#include <concepts>
#include <cstddef>
#include <type_traits>

#include "mapping/base/api.h"
#include "mapping/geometry/dtype.h"

namespace DCKPT_API dckpt {

/// C++ types that are elements of tensors: bool, integers of at most 64 bits, float, double and
/// complex numbers of these.
template <typename T>
concept ElementType =
    (std::integral<T> && sizeof(T) <= 8) || std::same_as<T, float> || std::same_as<T, double> ||
    std::same_as<T, std::complex<float>> || std::same_as<T, std::complex<double>>;

/// Returns the element type of T: dtype_of<float>() is kFloat32.
template <ElementType T>
constexpr DType dtype_of() noexcept {
  if constexpr (std::same_as<T, bool>) return DType::kBool;
  if constexpr (std::same_as<T, float>) return DType::kFloat32;
  if constexpr (std::same_as<T, double>) return DType::kFloat64;
  if constexpr (std::same_as<T, std::complex<float>>) return DType::kComplex64;
  if constexpr (std::same_as<T, std::complex<double>>) return DType::kComplex128;
  if constexpr (std::is_signed_v<T>) {
    return sizeof(T) == 1   ? DType::kInt8
           : sizeof(T) == 2 ? DType::kInt16
           : sizeof(T) == 4 ? DType::kInt32
                            : DType::kInt64;
  }
  return sizeof(T) == 1   ? DType::kUInt8
         : sizeof(T) == 2 ? DType::kUInt16
         : sizeof(T) == 4 ? DType::kUInt32
                          : DType::kUInt64;
}

}  // namespace dckpt
