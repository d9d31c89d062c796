#pragma once

#include <optional>
#include <span>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Returns the rule for an object that is stored only in other grids than requested: the first of
/// `rules` that matches its key, otherwise an error. Empty for any other object.
std::optional<WhenResharded> when_resharded(const ShardedObject& object, const StoredKeys& keys,
                                            const std::vector<ObjectRule>& rules);

/// Returns the same under load.objects, and an error for any other object.
WhenResharded rule_for(const ShardedObject& object, const OpenedCheckpoint& from);

/// Records those of the objects that a rule decides about in the report. Rank 0 logs those of all
/// ranks that are not loaded in one warning line. Collective.
void report_resharded(LoadCall& load, const OpenedCheckpoint& from,
                      std::span<const ShardedObject* const> objects);

/// Removes the dropped objects from a tree; in a list they become none so that the positions of
/// others stay. Requires a tree no deeper than map_leaves allows.
Value without_dropped(Value tree, const OpenedCheckpoint& from);

}  // namespace dckpt
