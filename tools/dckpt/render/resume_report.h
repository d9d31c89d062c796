#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/training_root/latest.h"

namespace dckpt::tool {

/// Returns whether the path is a training root, a directory with iterations or a tracker file.
bool is_training_root(const std::string& path);

/// Returns the checkpoint that a run started on this training root would resume from if it opened
/// it by `strategy`. If a checkpoint cannot be read, its error is in `passed_over`.
LatestChoice resume_choice(const std::string& root, const StrategySpec& strategy);

/// Returns "iter_0000020 (latest_checkpointed_iteration.txt names it)".
std::string resume_text(const LatestChoice& choice);

}  // namespace dckpt::tool
