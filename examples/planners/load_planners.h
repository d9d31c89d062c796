#pragma once

#include <dckpt/planner.h>

namespace example {

/// Registers `without`, `qkv` and `with_base` for loads, and what register_int8() does.
void register_load_planners();

/// Registers `int8_weights` for saves and for loads.
void register_int8();

}  // namespace example
