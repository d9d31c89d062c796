#pragma once

#include <dckpt/planner.h>

namespace example {

/// Registers `bf16_weights`, `by_node`, `without` and `checksum_log`.
void register_planners();

/// Returns what `checksum_log` has recorded, one line per tensor: "KEY BOX CRC-32".
std::vector<std::string> checksum_log();

}  // namespace example
