#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "dist_checkpointing/planner/save_planner.h"

namespace dckpt {

/// A rank's state: its shards, and the tensors and objects that a planner's items refer to by
/// WriteItem::source.
struct ItemSources {
  std::span<const LocalShard> shards;
  std::span<const Tensor> tensors;
  std::span<const Bytes> objects;
  std::size_t own_tensors = 0;  ///< the planner has added those that follow
  std::size_t own_objects = 0;
};

/// Checks that a planner's items are parts of this rank's state and describe their sources
/// correctly: tensors their elements; objects their kind, cell and replica, and no key of another
/// object. Throws CheckpointError (mismatch) listing all that do not.
void check_local_plan(const SavePlan& plan, const ItemSources& sources, const SavePlanner& planner);

/// Sets the grid of each object by its key, which a planner may have changed: coverage counts the
/// cells under the key that their files are written by.
void set_grid_keys(SavePlan& plan);

/// Checks that this rank has the data of the items that it is to write.
void check_assigned_items(const SavePlan& plan, const ItemSources& sources);

/// Checks that finish_plan() has changed nothing but the sources of the decided tensor items.
void check_finished_plan(const SavePlan& decided, const SavePlan& finished,
                         const ItemSources& sources, const SavePlanner& planner);

}  // namespace dckpt
