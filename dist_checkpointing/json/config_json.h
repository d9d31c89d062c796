#pragma once

#include <string>

#include "configs/key_map.h"

namespace dckpt {

/// Of `config show`: every field of a map with its value.
std::string to_json(const KeyMap& map);

}  // namespace dckpt
