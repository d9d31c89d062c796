#pragma once

#include "mapping/base/api.h"
#include "mapping/planning/planner_options.h"

namespace DCKPT_API dckpt {

/// What a strategy can do besides storing sharded tensors. A save that needs a missing capability
/// is refused before anything is written.
struct Capabilities {
  bool objects = true;          ///< ShardedObjects
  bool common_state = true;     ///< values that are not sharded
  bool cut_tensors = true;      ///< tensors in several chunks; otherwise each is stored whole
  bool equal_chunks = false;    ///< all chunks of a tensor have one size, which divides it
  bool flattened_form = false;  ///< FlattenedForm::kMegatron: metadata with flattened_shape
  bool compat = false;          ///< forms for other readers: SaveOptions::compat
  /// A manifest lists its files: SaveOptions::integrity. It is written after the strategy is done.
  bool integrity = false;
  /// Leaves files as they are that an interrupted attempt has finished (ItemSource::written).
  bool resume = false;
  bool separation_hint = false;  ///< separate files for some keys: SaveOptions::separation_hint

  /// Where the plans of a save can be kept, at most (PlannerOptions::keep_plans). kFile: the
  /// metadata come back as planned, with the properties and the order of tensors and of their
  /// chunks, which the file refers to.
  KeepPlans plans = KeepPlans::kOff;

  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

}  // namespace dckpt
