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

/// DCP: where keys lie in a rank's tree.
using KeyPaths = std::vector<std::pair<std::string, KeyPath>>;

/// The paths under the keys by which a planner stores what lies there, in the items of all
/// `shards`. A tensor that it stores under several keys, or not at all, has none.
KeyPaths with_planned_keys(const KeyPaths& paths, const SavePlan& items,
                           std::span<const LocalShard> shards);

/// Of `paths`, those of the keys that `items` store: together the ranks name every stored key, most
/// of them once.
KeyPaths paths_of(const SavePlan& items, const KeyPaths& paths);

/// Adds what other ranks say of stored keys that have no path so far: the lowest rank that writes
/// some of a key decides. Throws CheckpointError (mismatch) if one rank has a value where another
/// has a dict or list with items.
void add_paths(Metadata& metadata, const std::vector<KeyPaths>& of_ranks);

/// As torch orders them; keys that the plan does not know come first.
void sort_paths(Metadata& metadata, std::span<const GlobalPlan::Slot> order);

}  // namespace dckpt
