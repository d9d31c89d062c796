#pragma once

#include <vector>

#include "strategies/contract/registry.h"

namespace dckpt {

/// What the registry holds from the start.
std::vector<SaveStrategyEntry> builtin_save_strategies();
std::vector<LoadStrategyEntry> builtin_load_strategies();

}  // namespace dckpt
