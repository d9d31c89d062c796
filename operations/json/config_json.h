#pragma once

#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "configs/maps/row_remarks.h"
#include "configs/yaml/problems.h"

namespace dckpt {

/// Returns the JSON of `config show` for a key map: every field with its value.
std::string to_json(const KeyMap& map);

/// Returns the JSON of `config check`, with the remarks on a map without problems.
std::string to_json(const ConfigProblems& problems, const std::string& file,
                    const std::vector<MapRemark>& remarks);

}  // namespace dckpt
