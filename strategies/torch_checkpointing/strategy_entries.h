#pragma once

#include "strategies/contract/strategy_entry.h"

namespace dckpt {

/// Returns torch_checkpointing, for loads.
StrategyEntries torch_checkpointing_strategies();

}  // namespace dckpt
