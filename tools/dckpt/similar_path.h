#pragma once

#include <optional>
#include <string>

namespace dckpt::tool {

/// For a local path that does not exist: one that exists and differs in its names by a slip, or in
/// how an iteration is written ("iter_100" for "iter_0000100"). Empty if there is none, or if the
/// path exists.
std::optional<std::string> similar_path(const std::string& path);

}  // namespace dckpt::tool
