#pragma once

#include <string>

#include "dist_checkpointing/load/loaders.h"

namespace dckpt {

/// Warns if `asks` is false on every rank though the checkpoint has tensors: a state without
/// descriptions is a valid request, but rarely what was meant. `consequence` begins the warning:
/// what is loaded then. Collective.
void warn_if_nothing_is_asked(const LoadContext& load, bool asks, const std::string& consequence);

}  // namespace dckpt
