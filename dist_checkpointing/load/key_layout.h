#pragma once

#include <string>

#include "dist_checkpointing/load/key_groups.h"

namespace dckpt {

/// Whether Megatron's two ways to name the same things explain keys that are not stored: layers
/// that are stacked in one tensor or have a key each, norms as the local or the Transformer Engine
/// spec calls them. Lines that say so and what to do, each after a "\n"; empty if they do not.
std::string explain_by_layout(const KeySet& asked, const KeySet& stored);

}  // namespace dckpt
