#pragma once

#include <optional>
#include <string>

namespace dckpt::tool {

/// Returns an existing path that differs from a nonexistent local `path` by typing mistakes in its
/// names or by the spelling of an iteration ("iter_100" for "iter_0000100"). Empty if there is
/// none, or if `path` exists.
std::optional<std::string> similar_path(const std::string& path);

}  // namespace dckpt::tool
