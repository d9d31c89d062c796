#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Returns "rank 3", "ranks 0, 2, 5" or "ranks 0, 1, …, 15 and 1,008 more".
std::string ranks_text(std::span<const int> ranks);
std::string ranks_text(std::span<const std::size_t> ranks);

}  // namespace dckpt
