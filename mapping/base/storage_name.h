#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Limits of the names that a Storage accepts; POSIX file systems have the same limits or wider
/// ones.
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::size_t kMaxComponentBytes = 255;
inline constexpr std::size_t kMaxNameDepth = 64;

/// Returns the components of a name inside a Storage, as views into `name`. Throws CheckpointError
/// (corrupt) for an empty name, an absolute one, an empty, "." or ".." component, a NUL byte and
/// names beyond the limits.
std::vector<std::string_view> name_components(std::string_view name);

/// Does the same for a directory, where "" is the root and has no components.
std::vector<std::string_view> directory_components(std::string_view name);

/// Joins "a/b" and "c" to "a/b/c", and "" and "c" to "c".
std::string join_name(std::string_view directory, std::string_view name);

/// Return the directory that holds `name` ("" for the root), and the last component.
std::string parent_name(std::string_view name);
std::string base_name(std::string_view name);

}  // namespace dckpt
