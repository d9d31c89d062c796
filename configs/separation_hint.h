#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace dckpt {

/// Longest separation hint, in bytes: it is the beginning of file names,
/// "{hint}__{rank}_{number}.distcp", and those end at 255.
inline constexpr std::size_t kMaxSeparationHint = 200;

/// What is wrong with a prefix of keys as the beginning of file names, for people; empty if nothing
/// is. An empty one has no problem: it separates nothing.
std::optional<std::string> problem_of_separation_hint(std::string_view hint);

/// Throws CheckpointError (invalid argument) for a hint that has a problem.
void check_separation_hint(std::string_view hint);

}  // namespace dckpt
