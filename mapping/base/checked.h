#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

namespace dckpt {

/// Arithmetic on untrusted numbers: returns nothing instead of overflowing.
template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) noexcept {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
constexpr std::optional<T> checked_mul(T a, T b) noexcept {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// Returns whether [offset, offset + length) lies inside [0, size). Never overflows.
constexpr bool range_fits(std::uint64_t offset, std::uint64_t length, std::uint64_t size) noexcept {
  return offset <= size && length <= size - offset;
}

}  // namespace dckpt
