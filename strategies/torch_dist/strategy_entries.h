#pragma once

#include "strategies/contract/strategy_entry.h"

namespace dckpt {

/// Returns torch_dist, dcp and fsdp_dtensor.
StrategyEntries torch_dist_strategies();

}  // namespace dckpt
