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

/// Returns the part that an item fills of a tensor of this shape. Items of equal parts fill it
/// together.
Box part_box(const LoadItem& item, const Shape& whole);

/// Returns that part of the state's tensor `whole`; shares the elements.
Tensor part_of(const Tensor& whole, const LoadItem& item);

/// Returns the planner's memory for a resolved item. Throws CheckpointError (mismatch) if it is not
/// as LoadPlanner::resolve_tensor() is to return it.
Tensor memory_for(const LoadPlanner& planner, const LoadItem& item);

/// Has the planner make a part of what was read for its items, and puts it into `into`. Throws
/// CheckpointError (mismatch) if the planner makes something else.
void commit_part(const LoadPlanner& planner, std::span<const LoadItem> items,
                 std::vector<Tensor> read, const Tensor& into);

}  // namespace dckpt
