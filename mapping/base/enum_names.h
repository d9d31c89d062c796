#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The names of an enumeration's values, as configuration files and messages spell them.
template <typename Enum, std::size_t N>
using EnumNames = std::array<std::pair<Enum, std::string_view>, N>;

template <typename Enum, std::size_t N>
constexpr std::string_view name_of(const EnumNames<Enum, N>& names, Enum value) noexcept {
  for (const auto& [candidate, name] : names) {
    if (candidate == value) return name;
  }
  return "?";
}

template <typename Enum, std::size_t N>
constexpr std::optional<Enum> value_of(const EnumNames<Enum, N>& names,
                                       std::string_view wanted) noexcept {
  for (const auto& [value, name] : names) {
    if (name == wanted) return value;
  }
  return std::nullopt;
}

}  // namespace dckpt
