#pragma once

#include <string>
#include <utility>
#include <vector>

#include "mapping/state/value.h"

namespace dckpt {

/// The limit of rows; what is beyond it is left out, and the last row says so.
inline constexpr std::size_t kMostArguments = 5000;

/// Returns the values of a tree as text, each with its path: "args.num_layers" and "24".
std::vector<std::pair<std::string, std::string>> argument_rows(const Value& common);

}  // namespace dckpt
