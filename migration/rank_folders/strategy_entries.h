#pragma once

#include "strategies/contract/strategy_entry.h"

namespace dckpt {

/// Returns torch: rank folders, and files and models that torch.save wrote.
StrategyEntries rank_folder_strategies();

}  // namespace dckpt
