#pragma once

#include <vector>

#include "dist_checkpointing/strategy_entry.h"

namespace dckpt {

/// Return the entries that the registry starts with.
std::vector<SaveStrategyEntry> builtin_save_strategies();
std::vector<LoadStrategyEntry> builtin_load_strategies();

}  // namespace dckpt
