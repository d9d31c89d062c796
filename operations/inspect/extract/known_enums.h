#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dckpt {

/// A pickle contains only the value of an enum member (or, from Python 3.11.0–3.11.3, only its
/// name). These functions look up the other for the integer enums in training checkpoints:
/// Megatron's and signal.Signals. Members keep their numbers from release to release.
bool is_known_enum(std::string_view class_path) noexcept;
std::optional<std::string_view> enum_name(std::string_view class_path, std::int64_t value) noexcept;
std::optional<std::int64_t> enum_value(std::string_view class_path, std::string_view name) noexcept;

}  // namespace dckpt
