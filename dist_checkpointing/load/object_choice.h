#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
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

/// The objects to read for a requested object, as positions in the metadata: its cell, or all cells
/// of its key if a rule gathers them. Empty if it is not stored or is excused.
struct ObjectCells {
  std::vector<std::uint32_t> positions;
  bool gathered = false;

  /// Returns the value of the cell, or the list of all of them. Requires `positions`.
  Value value(const std::unordered_map<std::uint32_t, Value>& read) const;
};
ObjectCells cells_of(const ShardedObject& object, const OpenedCheckpoint& from);
bool is_gathered(const ShardedObject& object, const OpenedCheckpoint& from);

/// Returns whether a rule allows loading without the object.
bool is_excused(const ShardedObject& object, const OpenedCheckpoint& from);
bool is_excused(const Value& leaf,
                const OpenedCheckpoint& from);  ///< false for anything but objects

/// Records the excused objects of a tree in the report. Rank 0 logs those of all ranks in one
/// warning line. Collective.
void report_resharded(LoadCall& load, const OpenedCheckpoint& from, const Value& tree);

/// Applies the rules to a tree: dropped objects are removed, or replaced by none in a list so that
/// the positions of others stay. Objects to be created again get no data.
Value apply_object_rules(Value tree, const LoadCall& load, const OpenedCheckpoint& from);

}  // namespace dckpt
