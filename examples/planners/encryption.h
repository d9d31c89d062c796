#pragma once

#include <dckpt/planner.h>

namespace example {

/// Registers `encrypted` for saves and for loads.
void register_encryption();

}  // namespace example
