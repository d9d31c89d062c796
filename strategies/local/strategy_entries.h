#pragma once

#include "strategies/contract/strategy_entry.h"

namespace dckpt {

/// Returns local, for loads.
StrategyEntries local_strategies();

}  // namespace dckpt
