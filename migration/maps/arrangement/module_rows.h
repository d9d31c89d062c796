#pragma once

#include <string>

#include "configs/maps/key_map.h"

// Modules that a map names without a row of their own, as it does for extra states. The rows beside
// them tell which layers have them. Keys are Megatron's.

namespace dckpt {

/// Returns the kind of layers that has a module, or "" if all layers have it: the kind whose rows
/// alone are in the module around it.
std::string kind_with(const KeyMap& map, const std::string& module);

/// Returns a module with the number that rows beside it have: {2l} in place of {l}.
std::string with_steps(const KeyMap& map, const std::string& module);

}  // namespace dckpt
