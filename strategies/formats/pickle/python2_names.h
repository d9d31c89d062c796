#pragma once

#include <string_view>
#include <utility>

namespace dckpt::pickle {

/// Returns the module and name that Python 3 looks up for `module` and `name` in a pickle of
/// protocol 2 (Python's `fix_imports`); the same texts if it has no other name for them. Texts
/// that differ are static.
std::pair<std::string_view, std::string_view> python3_name(std::string_view module,
                                                           std::string_view name);

}  // namespace dckpt::pickle
