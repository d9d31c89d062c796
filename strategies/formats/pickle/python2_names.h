#pragma once

#include <string_view>
#include <utility>

namespace dckpt::pickle {

/// Module and name that Python 3 looks up when a pickle of protocol 0–2 says `module` and `name`
/// (Python's `fix_imports`); the same texts when it has no other name for them. Texts that differ
/// are static.
std::pair<std::string_view, std::string_view> python3_name(std::string_view module,
                                                           std::string_view name);

}  // namespace dckpt::pickle
