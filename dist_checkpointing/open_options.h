#pragma once

#include <optional>

#include "configs/options.h"
#include "dist_checkpointing/tracker.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

struct OpenOptions {
  /// Under a training root: the iteration to open instead of the tracker's. Of a directory with
  /// files of several iterations (local): the one to open instead of the newest.
  std::optional<IterationName> iteration{};
  /// If the metadata has lost the original shapes of flattened tensors, take them from the model
  /// tensors of the same checkpoint where possible.
  bool recover_flattened_shapes = true;
  /// The strategy to open it with; see LoadOptions::strategy.
  StrategySpec strategy{.name = std::string(kAutoStrategy)};
  /// Gives the checkpoint other keys; see LoadOptions::map.
  KeyMapOptions map{};
};

}  // namespace dckpt
