#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// One step into a nested state dict: a dictionary key or a list position.
using PathElement = std::variant<std::int64_t, std::string>;

/// The place of a leaf in a nested state dict. DCP keeps it per key as planner data.
using KeyPath = std::vector<PathElement>;

/// Returns a text such as "a.0.b".
std::string dotted_name(const KeyPath& path);

}  // namespace dckpt
