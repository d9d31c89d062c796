#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/key_path.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"

namespace dckpt {

/// DCP: the paths of keys in a rank's tree.
using KeyPaths = std::vector<std::pair<std::string, KeyPath>>;

/// Returns the paths under the keys that a planner gives to the leaves, in the items of all
/// `shards`. A new key leads to a path of its own: what the key has of the old path stays, and the
/// rest is one step. A tensor that is not stored has none.
KeyPaths with_planned_keys(const KeyPaths& paths, const SavePlan& items,
                           std::span<const LocalShard> shards);

/// Returns those of `paths` whose keys `items` store: together the ranks name every stored key,
/// most of them once.
KeyPaths paths_of(const SavePlan& items, const KeyPaths& paths);

/// Adds the paths from other ranks for stored keys that have none so far: the lowest rank that
/// writes part of a key decides. Throws CheckpointError (mismatch) if two keys have one path, or
/// one rank has a value where another has a dict or list with items.
void add_paths(Metadata& metadata, const std::vector<KeyPaths>& of_ranks);

/// Sorts paths in torch's order; keys that the plan does not know come first.
void sort_paths(Metadata& metadata, std::span<const GlobalPlan::Slot> order);

}  // namespace dckpt
