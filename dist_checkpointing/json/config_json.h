#pragma once

#include <string>
#include <vector>

#include "configs/key_map.h"
#include "configs/problems.h"
#include "configs/row_remarks.h"

namespace dckpt {

/// Returns the JSON of `config show` for a key map: every field with its value.
std::string to_json(const KeyMap& map);

/// Returns the JSON of `config check`, with the remarks on a map without problems.
std::string to_json(const ConfigProblems& problems, const std::string& file,
                    const std::vector<MapRemark>& remarks);

}  // namespace dckpt
