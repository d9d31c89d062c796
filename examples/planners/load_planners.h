#pragma once

#include <dckpt/planner.h>

namespace example {

/// Registers `without`, `split_qkv` and `int8_weights` for loads, and the last also for saves.
void register_load_planners();

}  // namespace example
