#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dckpt {

/// The longest separation hint, in bytes: it begins file names, "{hint}__{rank}_{number}.distcp",
/// which have at most 255 bytes.
inline constexpr std::size_t kMaxSeparationHint = 200;

/// Returns the problem of a prefix of keys as the beginning of file names, as text for messages;
/// empty if there is none. An empty prefix has no problem: it separates nothing.
std::optional<std::string> problem_of_separation_hint(std::string_view hint);

/// Throws CheckpointError (invalid argument) for a hint that has a problem.
void check_separation_hint(std::string_view hint);

}  // namespace dckpt
