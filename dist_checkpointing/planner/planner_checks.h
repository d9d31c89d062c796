#pragma once

#include <span>
#include <string>

#include "dist_checkpointing/planner/save_planner.h"

namespace dckpt {

/// The tensors and objects that a planner's items may refer to, by WriteItem::source.
struct ItemSources {
  std::span<const Tensor> tensors;
  std::span<const Bytes> objects;
};

/// Checks that a planner's items are parts of this rank's state and describe their sources
/// correctly. Throws CheckpointError (mismatch) listing all that do not.
void check_local_plan(const SavePlan& plan, const ItemSources& sources, const SavePlanner& planner);

/// Checks that finish_plan() has changed nothing but the sources of the decided items.
void check_finished_plan(const SavePlan& decided, const SavePlan& finished,
                         const ItemSources& sources, const SavePlanner& planner);

}  // namespace dckpt
