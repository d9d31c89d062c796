#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/training_root/latest.h"

namespace dckpt::tool {

/// Whether the path is a training root: it holds iterations or a tracker file.
bool is_training_root(const std::string& path);

/// Tells what a run that starts on a training root and opens it by `strategy` takes. That it cannot
/// be told, since a checkpoint cannot be read, is among what is passed over.
LatestChoice resume_choice(const std::string& root, const StrategySpec& strategy);

/// "iter_0000020 (latest_checkpointed_iteration.txt names it)"
std::string resume_text(const LatestChoice& choice);

}  // namespace dckpt::tool
