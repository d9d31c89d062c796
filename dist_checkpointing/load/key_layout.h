#pragma once

#include <string>

#include "dist_checkpointing/open/key_groups.h"

namespace dckpt {

/// Explains missing keys by Megatron's two naming schemes: layers stacked in one tensor or stored
/// under a key each, norms named by the local or by the Transformer Engine spec. Returns lines with
/// the reason and the remedy, each after a "\n"; empty if this is not the reason.
std::string explain_by_layout(const KeySet& asked, const KeySet& stored);

}  // namespace dckpt
