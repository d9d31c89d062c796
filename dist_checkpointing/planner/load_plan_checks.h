#pragma once

#include <span>
#include <vector>

#include "dist_checkpointing/planner/load_planner.h"

namespace dckpt {

/// Checks that a planner's items are for tensors of the state and have their form, and that those
/// of each tensor fill all of it, each element once. Throws CheckpointError (mismatch) listing all
/// that do not.
void check_load_plan(const LoadPlan& plan, std::span<const ShardedTensor> wanted,
                     const LoadPlanner& planner);

/// Returns the part of the state's tensor `whole` that an item fills; shares the elements.
Tensor part_of(const Tensor& whole, const LoadItem& item);

/// Has the planner make a part of what was read for its items, and puts it into `into`. Throws
/// CheckpointError (mismatch) if the planner makes something else.
void commit_part(const LoadPlanner& planner, std::span<const LoadItem> items,
                 std::vector<Tensor> read, const Tensor& into);

}  // namespace dckpt
