#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mapping/base/api.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/tree.h"

namespace DCKPT_API dckpt {

/// What Megatron does with a sharded state dict before it saves or loads it. These functions only
/// look into dicts and lists; a sharded leaf inside a tuple is not found.

/// The tree with every factory replaced by what it builds (nested factories stay).
Value apply_factories(Value state);

/// `loaded` with every subtree that stands where `factories` has a factory replaced by what that
/// factory merges of it. `factories` may have dicts of positions for lists. Throws CheckpointError
/// (mismatch) where the trees differ.
Value merge_factories(Value loaded, const Value& factories);

/// As merge_factories, but the factories stay where `state` has them: what each merges becomes its
/// data, in the memory that its tensor has if dtype and shape are the same. `loaded` has sharded
/// leaves with data where they were built. Throws CheckpointError (invalid argument) for a factory
/// that merges into anything but a tensor.
Value merge_into_factories(Value loaded, const Value& state);

/// The tree without descriptions, as Megatron's load returns it: tensors in place of ShardedTensors
/// and factories, values in place of ShardedObjects and LocalNonpersistentObjects.
Value plain_state(Value state);

struct SplitState {
  Value sharded;  ///< ShardedTensors and ShardedObjects
  Value common;   ///< everything else
};

/// Splits a state dict for saving. Factories are applied; local non-persistent objects and empty
/// flattened ranges are in neither part.
SplitState split_for_save(Value state);

struct LoadRequest {
  Value expanded;   ///< the state, every factory replaced by what it builds
  Value sharded;    ///< ShardedTensors and ShardedObjects of it
  Value local;      ///< what its local non-persistent objects hold
  Value factories;  ///< for merge_factories, without their data; lists are dicts of positions
};

/// Splits a state dict for loading; everything that is neither sharded nor local comes from the
/// checkpoint. Megatron's loaded state, in which empty flattened ranges have no place, is
/// merge_factories(merge(merge(common, local), loaded), factories).
LoadRequest split_for_load(const Value& state);

/// Flattened ranges without elements, which some ranks of an unevenly cut optimizer have: nothing
/// to store or load.
bool is_empty_range(const Value& leaf);
Value without_empty_ranges(const Value& state);

/// Prepends `prefix` to the keys of all sharded leaves.
void add_prefix_for_sharding(Value& state, std::string_view prefix);

/// Replaces the prefix of the keys of all sharded leaves. Throws CheckpointError (invalid
/// argument), without changing anything, if a key does not start with it.
void replace_prefix_for_sharding(Value& state, std::string_view old_prefix,
                                 std::string_view new_prefix);

/// In the key of every sharded leaf, replaces the first old prefix of the list that it starts with.
void apply_prefix_mapping(Value& state,
                          std::span<const std::pair<std::string, std::string>> prefixes);

}  // namespace dckpt
