#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace dckpt::tool {

/// Returns the branches in front of the rows of a tree: "│  ├─ ", or "|  |- " in ASCII. `depths`
/// are those of the rows, parents before children. Rows of depth 0 have no branches.
std::vector<std::string> branches(std::span<const std::size_t> depths, bool unicode);

}  // namespace dckpt::tool
