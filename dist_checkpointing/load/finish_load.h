#pragma once

#include <functional>

#include "dist_checkpointing/load/loaders.h"

namespace dckpt {

/// The last step of a load: `work` puts the state together, and the ranks tell each other what
/// their phases took, for the report. Collective.
void finish_load(const LoadContext& load, const std::function<void()>& work);

}  // namespace dckpt
