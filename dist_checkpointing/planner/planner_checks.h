#pragma once

#include <span>
#include <string>

#include "dist_checkpointing/planner/save_planner.h"

namespace dckpt {

/// What a planner's items may be made of, by WriteItem::source.
struct ItemSources {
  std::span<const Tensor> tensors;
  std::span<const Bytes> objects;
};

/// That a planner's items are parts of this rank's state, and hold what they say. Throws
/// CheckpointError (mismatch) with all that are not.
void check_local_plan(const SavePlan& plan, const ItemSources& sources, const SavePlanner& planner);

/// That finish_plan() has left the items as they were decided, but for where they come from.
void check_finished_plan(const SavePlan& decided, const SavePlan& finished,
                         const ItemSources& sources, const SavePlanner& planner);

}  // namespace dckpt
