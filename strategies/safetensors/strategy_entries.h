#pragma once

#include "strategies/contract/strategy_entry.h"

namespace dckpt {

/// Returns hf and safetensors for saves, and safetensors for loads.
StrategyEntries safetensors_strategies();

}  // namespace dckpt
