#pragma once

#include <optional>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/load/loaders.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/value.h"

namespace dckpt {

/// The rule for an object that is stored in other grids than it is asked for: the first of `rules`
/// that matches its key, or that it is an error. Empty for every other object.
std::optional<WhenResharded> when_resharded(const ShardedObject& object, const StoredKeys& keys,
                                            const std::vector<ObjectRule>& rules);

/// Whether a rule lets the load go on without the object.
bool is_excused(const ShardedObject& object, const LoadContext& load);
bool is_excused(const Value& leaf, const LoadContext& load);  ///< false for what is no object

/// Notes in the report which objects of a tree are excused, and rank 0 warns of those of all ranks
/// in one line. Collective.
void report_resharded(const LoadContext& load, const Value& tree);

/// The tree after the rules: dropped objects are taken out, or none in a list, so that the places
/// of others stay; those for a new start have no data.
Value apply_object_rules(Value tree, const LoadContext& load);

}  // namespace dckpt
