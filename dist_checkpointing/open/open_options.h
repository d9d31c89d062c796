#pragma once

#include <optional>

#include "configs/policy/options.h"
#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

struct OpenOptions {
  /// The iteration to open: under a training root, instead of the tracker's; in a directory with
  /// files of several iterations (local), instead of the newest.
  std::optional<IterationName> iteration{};
  /// If the metadata has lost the original shapes of flattened tensors, takes them from the model
  /// tensors of the same checkpoint where possible.
  bool recover_flattened_shapes = true;
  /// The strategy that opens the checkpoint; see LoadOptions::strategy.
  StrategySpec strategy{.name = std::string(kAutoStrategy)};
  /// The load planner whose tensors are seen in place of the stored ones. By default, or with
  /// kStoredPlanner, what is stored is seen as it is; kAutoStrategy is the planner that the
  /// checkpoint names (SavePlannerEntry::read_by), if it names one.
  StrategySpec planner{.name = ""};
  /// Gives the checkpoint other keys; see LoadOptions::map.
  KeyMapOptions map{};
};

}  // namespace dckpt
