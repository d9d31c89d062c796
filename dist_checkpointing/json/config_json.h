#pragma once

#include <string>

#include "configs/key_map.h"

namespace dckpt {

/// Returns the JSON of `config show` for a key map: every field with its value.
std::string to_json(const KeyMap& map);

}  // namespace dckpt
