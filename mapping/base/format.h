#pragma once

#include <fmt/core.h>  // declarations only; format.cpp has fmt's code, so that no user links to it

#include <string>

namespace dckpt {
namespace format_detail {
std::string vformat(fmt::string_view text, fmt::format_args args);
}

/// fmt::format: str_format("rank {} is out of range (size {})", rank, size). `text` is checked
/// against the arguments when it is compiled.
template <typename... Args>
std::string str_format(fmt::format_string<Args...> text, Args&&... args) {
  return format_detail::vformat(text, fmt::make_format_args(args...));
}

}  // namespace dckpt
