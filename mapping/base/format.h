#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {
namespace format_detail {

using Arg = std::variant<std::int64_t, std::uint64_t, double, std::string_view>;
std::string vformat(std::string_view text, std::span<const Arg> args);

template <typename T>
Arg arg(const T& value) {
  static_assert(!std::same_as<T, bool> && !std::same_as<T, char>);
  if constexpr (std::signed_integral<T>) {
    return std::int64_t{value};
  } else if constexpr (std::unsigned_integral<T>) {
    return std::uint64_t{value};
  } else if constexpr (std::floating_point<T>) {
    return double{value};
  } else {
    return std::string_view(value);
  }
}

// These are not constexpr: a call stops the compilation of a Text.
void unmatched_brace();
void number_of_fields_and_arguments_differs();
void unknown_field();

template <typename... Args>
struct Text {
  std::string_view view;

  consteval Text(const char* literal) : view(literal) {
    constexpr std::array kIsReal = {std::floating_point<Args>..., false};
    std::size_t fields = 0;
    for (std::size_t at = 0; at < view.size(); ++at) {
      if (view[at] != '{' && view[at] != '}') continue;
      if (at + 1 < view.size() && view[at + 1] == view[at]) {
        ++at;
        continue;
      }
      const std::size_t end = view.find('}', at);
      if (view[at] == '}' || end == view.npos) unmatched_brace();
      if (fields == sizeof...(Args)) number_of_fields_and_arguments_differs();
      if (!is_known(view.substr(at + 1, end - at - 1), kIsReal[fields])) unknown_field();
      ++fields;
      at = end;
    }
    if (fields != sizeof...(Args)) number_of_fields_and_arguments_differs();
  }

  static consteval bool is_known(std::string_view field, bool real) {
    constexpr std::string_view kDigits = "0123456789";
    if (field.empty()) return true;
    if (!real) return field[0] == ':' && field.find_first_not_of(kDigits, 1) == field.npos;
    return field.starts_with(":.") && field.find_first_not_of(kDigits, 2) == field.size() - 1 &&
           field.back() == 'f';
  }
};

}  // namespace format_detail

/// Formats integers, real numbers and text: str_format("rank {} is out of range (size {})", rank,
/// size). Fields are {}, {:020} (a width) and {:.2f}; in {}, a real number has as few digits as
/// tell it from others, and an exponent below 1e-4 and from 1e16 on. The compiler checks that the
/// fields match the arguments.
template <typename... Args>
std::string str_format(std::type_identity_t<format_detail::Text<Args...>> text,
                       const Args&... args) {
  const std::array<format_detail::Arg, sizeof...(Args)> all = {format_detail::arg(args)...};
  return format_detail::vformat(text.view, all);
}

}  // namespace dckpt
