#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mapping/base/api.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/tree.h"

namespace DCKPT_API dckpt {

/// The operations of Megatron on a sharded state dict before it saves or loads it. They only look
/// into dicts and lists; a sharded leaf inside a tuple is not found.

/// Replaces every factory of a tree by the tree that it builds (nested factories stay).
Value apply_factories(Value state);

/// Replaces every subtree of `loaded` that stands where `factories` has a factory by the result of
/// that factory's merge. `factories` may have dicts of positions for lists. Throws CheckpointError
/// (mismatch) where the trees differ.
Value merge_factories(Value loaded, const Value& factories);

/// Merges like merge_factories, but the factories stay where `state` has them: the result of each
/// merge becomes its data, in the memory that its tensor has if dtype and shape are the same.
/// `loaded` has sharded leaves with data where they were built. Throws CheckpointError (invalid
/// argument) for a factory that merges into anything but a tensor.
Value merge_into_factories(Value loaded, const Value& state);

/// Returns the tree without descriptions, as Megatron's load returns it: tensors in place of
/// ShardedTensors and factories, values in place of ShardedObjects and LocalNonpersistentObjects.
Value plain_state(Value state);

struct SplitState {
  Value sharded;  ///< ShardedTensors and ShardedObjects
  Value common;   ///< everything else
};

/// Splits a state dict for saving. Factories are applied; local non-persistent objects and empty
/// flattened ranges are in neither part.
SplitState split_for_save(Value state);

struct LoadRequest {
  Value expanded;   ///< the state, with every factory replaced by the tree that it builds
  Value sharded;    ///< its ShardedTensors and ShardedObjects
  Value local;      ///< the values of its local non-persistent objects
  Value factories;  ///< for merge_factories, without their data; lists are dicts of positions
};

/// Splits a state dict for loading; everything that is neither sharded nor local comes from the
/// checkpoint. Megatron's loaded state, in which empty flattened ranges have no place, is
/// merge_factories(merge(merge(common, local), loaded), factories).
LoadRequest split_for_load(const Value& state);

/// Returns whether a leaf is a flattened range without elements, which some ranks of an unevenly
/// cut optimizer have: there is nothing to store or load.
bool is_empty_range(const Value& leaf);
Value without_empty_ranges(const Value& state);

/// Prepends `prefix` to the keys of all sharded leaves.
void add_prefix_for_sharding(Value& state, std::string_view prefix);

/// Replaces the prefix of the keys of all sharded leaves. Throws CheckpointError (invalid
/// argument), without changing anything, if a key does not start with it.
void replace_prefix_for_sharding(Value& state, std::string_view old_prefix,
                                 std::string_view new_prefix);

/// Replaces, in the key of every sharded leaf, the first old prefix of the list with which it
/// starts.
void apply_prefix_mapping(Value& state,
                          std::span<const std::pair<std::string, std::string>> prefixes);

}  // namespace dckpt
