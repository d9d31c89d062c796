#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace dckpt::tool {

/// The branches in front of the rows of a tree, whose depths are given, parents before children:
/// "│  ├─ ", or "|  |- " in ASCII. Rows of depth 0 have none.
std::vector<std::string> branches(std::span<const std::size_t> depths, bool unicode);

}  // namespace dckpt::tool
