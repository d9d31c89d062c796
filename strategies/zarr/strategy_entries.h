#pragma once

#include "strategies/contract/strategy_entry.h"

namespace dckpt {

/// Returns zarr, for saves and loads.
StrategyEntries zarr_strategies();

}  // namespace dckpt
