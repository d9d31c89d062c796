#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dckpt {

/// A pickle names a member of an enum by its value (or, from Python 3.11.0–3.11.3, by its name) and
/// says nothing else. These look the other half up for the integer enums that training checkpoints
/// hold: Megatron's and signal.Signals. Members keep their numbers from release to release.
bool is_known_enum(std::string_view class_path) noexcept;
std::optional<std::string_view> enum_name(std::string_view class_path, std::int64_t value) noexcept;
std::optional<std::int64_t> enum_value(std::string_view class_path, std::string_view name) noexcept;

}  // namespace dckpt
