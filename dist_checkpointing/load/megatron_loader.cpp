#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/load/access_check.h"
#include "dist_checkpointing/load/empty_request.h"
#include "dist_checkpointing/load/fill.h"
#include "dist_checkpointing/load/finish_load.h"
#include "dist_checkpointing/load/key_check.h"
#include "dist_checkpointing/load/loaders.h"
#include "dist_checkpointing/load/merge_common.h"
#include "dist_checkpointing/load/misfit.h"
#include "dist_checkpointing/load/object_choice.h"
#include "dist_checkpointing/load/truncation.h"
#include "dist_checkpointing/shard_spec.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_tree.h"
#include "mapping/state/tree.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

/// What of the request is stored otherwise.
std::vector<Misfit> misfits_of(const LoadContext& load, const Value& sharded) {
  std::vector<Misfit> misfits;
  const auto note = [&](std::optional<Misfit> misfit) {
    if (misfit) misfits.push_back(std::move(*misfit));
  };
  const ShardedLeaves leaves = collect_sharded(sharded);
  for (const ShardedTensor* const tensor : leaves.tensors) {
    const auto stored = load.keys.tensor(tensor->key);
    if (stored) {
      const TensorStorageMetadata& metadata = load.reader.metadata().tensors[*stored];
      std::ranges::move(misfits_of_shard(*tensor, metadata, load.options,
                                         load.reader.info().conventions.keys_are_paths),
                        std::back_inserter(misfits));
      note(truncation_of(load, *tensor, metadata));
    } else if (load.keys.grids(tensor->key) != nullptr)
      note(Misfit{"asked for as a tensor, but stored as an object:", tensor->key});
  }
  for (const ShardedObject* const object : leaves.objects)
    note(misfit_of(*object, load.keys, load.options));
  return misfits;
}

const std::string& key_of(const Value& leaf) {
  return leaf.is(Value::Kind::kShardedTensor) ? leaf.as_sharded_tensor().key
                                              : leaf.as_sharded_object().key;
}

/// The keys that are requested, not stored, and tolerated by a rule or the strict mode.
KeySet find_unexpected(const LoadContext& load, const Value& sharded,
                       const std::vector<Misfit>& misfits) {
  const StrictHandling strict = load.options.strict;
  if (!checks_unexpected(strict) && load.options.missing.empty()) return {};
  const ShardedLeaves leaves = collect_sharded(sharded);
  Asked asked{{}, misfits};
  for (const ShardedTensor* const tensor : leaves.tensors) asked.keys.push_back(tensor->key);
  for (const ShardedObject* const object : leaves.objects) asked.keys.push_back(object->key);
  const KeySet stored = load.keys.keys();
  KeySet kept = take_decided(asked.keys, stored, load.options.missing, load.comm).kept;
  KeyDifference difference = check_keys(asked, stored, strict, load.comm);
  if (returns(strict)) {
    load.report.missing.assign(difference.missing.begin(), difference.missing.end());
    load.report.unexpected.assign(difference.unexpected.begin(), difference.unexpected.end());
  }
  load.report.unexpected.insert(load.report.unexpected.end(), kept.begin(), kept.end());
  difference.unexpected.merge(kept);
  return difference.unexpected;
}

/// Checks that everything is stored as requested, including each object at its place in the grid.
void require_all(const LoadContext& load, const Value& sharded, std::vector<Misfit> misfits) {
  const ShardedLeaves leaves = collect_sharded(sharded);
  KeySet misfitting;
  for (const Misfit& misfit : misfits) misfitting.insert(misfit.key);
  Asked asked{{}, std::move(misfits)};
  for (const ShardedTensor* const tensor : leaves.tensors) {
    if (!misfitting.contains(tensor->key)) asked.keys.push_back(tensor->key);
  }
  for (const ShardedObject* const object : leaves.objects) {
    if (!misfitting.contains(object->key) && !is_excused(*object, load) &&
        !is_gathered(*object, load))
      asked.keys.push_back(object->unique_key());
  }
  require_stored(asked, load.keys,
                 "keys are asked for that the checkpoint does not have (load.strict: "
                 "log_unexpected leaves such keys as they are)",
                 load.comm);
}

/// What was read for the sharded leaves, in the order of the tree: tensors, then values of objects.
struct LoadedLeaves {
  std::vector<Tensor> tensors;
  std::vector<Value> objects;
};

/// Whether each sharded leaf is a tensor that was filled where it is.
bool is_filled_in_place(const Value& state, const LoadedLeaves& loaded) {
  std::size_t tensors = 0;
  const auto differs = [&](const Value& leaf) {
    if (!leaf.is_sharded()) return false;
    if (!leaf.is(Value::Kind::kShardedTensor) || is_empty_range(leaf)) return true;
    const std::optional<Tensor>& data = leaf.as_sharded_tensor().data;
    return !data || data->data() != loaded.tensors[tensors++].data();
  };
  return !any_leaf(state, differs);
}

/// The tree with its sharded leaves replaced by what was loaded; those that were not requested
/// stay.
Value filled(const LoadContext& load, Value state, const LoadedLeaves& loaded,
             const KeySet& unexpected) {
  if (unexpected.empty() && is_filled_in_place(state, loaded)) return state;
  std::size_t tensors = 0;
  std::size_t objects = 0;
  return map_leaves(std::move(state), [&](Value leaf) {
    if (!leaf.is_sharded() || unexpected.contains(key_of(leaf))) return leaf;
    if (is_empty_range(leaf)) {
      ShardedTensor& shard = leaf.mutable_sharded_tensor();
      if (!shard.data) shard.data = Tensor::empty(shard.dtype, shard.data_shape());
    } else if (leaf.is(Value::Kind::kShardedTensor)) {
      leaf.mutable_sharded_tensor().data = loaded.tensors[tensors++];
    } else if (!is_excused(leaf, load)) {
      ShardedObject& object = leaf.mutable_sharded_object();
      object.data = loaded.objects[objects++];
      object.has_data = true;
    }
    return leaf;
  });
}

/// Megatron's result: the common state, local values, and what was loaded in place of sharded
/// leaves.
Value plain_result(Value common, const LoadRequest& parts, Value sharded) {
  const Value leaves = plain_state(std::move(sharded));
  Value base = common.is_none() ? Value::dict() : std::move(common);
  if (!parts.local.is_none()) base = merge(std::move(base), parts.local);
  if (!leaves.is_none()) base = merge(std::move(base), leaves);
  return merge_factories(std::move(base), parts.factories);
}

/// The caller's tree: sharded leaves with what was loaded, the others from the common state.
Value described_result(const LoadContext& load, const Value& common, const Value& state,
                       Value expanded) {
  MergedCommon merged =
      merge_common(merge_into_factories(std::move(expanded), state), common, load.options.cast);
  load.report.replaced = std::move(merged.replaced);
  load.report.casts.insert(load.report.casts.end(), merged.casts.begin(), merged.casts.end());
  for (const KeyPath& path : merged.kept) load.report.kept.push_back(dotted_name(path));
  return std::move(merged.state);
}

/// Megatron loads the common state alone for a state without sharded leaves.
bool has_sharded_leaves(const Value& state) {
  const ShardedLeaves leaves = collect_sharded(state);
  return !leaves.tensors.empty() || !leaves.objects.empty();
}

/// The request as a planner changes it: what it leaves out is local to this rank.
Value with_planned_tensors(const LoadContext& load, Value expanded,
                           const std::vector<std::optional<ShardedTensor>>& asked) {
  std::size_t target = 0;
  return map_leaves(std::move(expanded), [&](Value leaf) {
    if (!leaf.is(Value::Kind::kShardedTensor)) return leaf;
    const std::optional<ShardedTensor>& tensor = asked[target++];
    if (tensor) return Value(*tensor);
    load.report.left_out.push_back(leaf.as_sharded_tensor().key);
    return Value(LocalNonpersistentObject{std::move(leaf)});
  });
}

/// The request as a planner makes it. The call is collective.
LoadRequest planned_request(const LoadContext& load, const StateDict& state) {
  LoadRequest parts;
  std::vector<ShardedTensor> wanted;
  agree(load.comm, "reading the request", [&] {
    parts = split_for_load(state);
    any_leaf(parts.expanded, [&](const Value& leaf) {
      if (leaf.is(Value::Kind::kShardedTensor)) wanted.push_back(leaf.as_sharded_tensor());
      return false;
    });
  });
  const auto asked = load.planned->plan(wanted, load.reader.metadata(), load.options, load.comm);
  agree(load.comm, "reading the planned request", [&] {
    LoadRequest planned =
        split_for_load(with_planned_tensors(load, std::move(parts.expanded), asked));
    parts.expanded = std::move(planned.expanded);
    parts.sharded = std::move(planned.sharded);
  });
  return parts;
}

/// The tree that the planner was asked with, and what was loaded in it.
Value restored(const LoadContext& load, Value expanded) {
  if (load.planned == nullptr) return expanded;
  std::size_t target = 0;
  return map_leaves(std::move(expanded), [&](Value leaf) {
    if (leaf.is(Value::Kind::kShardedTensor))
      return Value(load.planned->restored(target++, leaf.as_sharded_tensor()));
    if (leaf.is(Value::Kind::kLocalNonpersistentObject)) {
      const Value& kept = leaf.as_local_nonpersistent().value;
      if (kept.is(Value::Kind::kShardedTensor)) return ++target, kept;
    }
    return leaf;
  });
}

}  // namespace

void load_megatron(const LoadContext& load, Value common, StateDict& state) {
  LoadRequest parts;
  std::vector<Misfit> misfits;
  Value asked;  // the sharded leaves that will be read
  TensorRequest request;
  LoadedLeaves loaded;
  std::vector<ObjectCells> objects;
  std::vector<std::uint32_t> cells;  // of all objects
  if (load.planned != nullptr) parts = planned_request(load, state);
  agree(load.comm, "reading the request", [&] {
    if (load.planned == nullptr)
      parts = split_for_load(load.leaves == Leaves::kPlain ? without_empty_ranges(state) : state);
    if (!parts.sharded.is_none()) asked = without_empty_ranges(parts.sharded);
    load.shapes->take(asked, load.keys);
    misfits = misfits_of(load, asked);
  });
  if (load.options.parallel.enabled) load.shapes->exchange(load.comm);
  warn_if_nothing_is_asked(load, has_sharded_leaves(asked),
                           "the state dict has no ShardedTensors or ShardedObjects, so only the "
                           "common state is loaded");
  const KeySet unexpected = find_unexpected(load, asked, misfits);
  if (!unexpected.empty()) {
    const auto is_stored = [&](const Value& leaf) { return !unexpected.contains(key_of(leaf)); };
    asked = extract_matching(asked, is_stored).matching;
    if (load.leaves == Leaves::kPlain)
      parts.sharded = extract_matching(parts.sharded, is_stored).matching;
  }
  report_resharded(load, asked);
  require_all(load, asked, std::move(misfits));
  load.report.access_checked = load.options.validate_access_integrity;
  if (load.options.validate_access_integrity)
    check_access(asked, PlannerKind::kMegatron, load.comm, &load.plan_cache);
  agree(load.comm, "checking the request against the checkpoint", [&] {
    const ShardedLeaves leaves = collect_sharded(asked);
    for (const ShardedObject* const object : leaves.objects) {
      ObjectCells own = cells_of(*object, load);
      if (own.positions.empty()) continue;
      cells.insert(cells.end(), own.positions.begin(), own.positions.end());
      objects.push_back(std::move(own));
    }
    TensorRequestBuilder builder(load.reader, load.keys, load.options,
                                 load.watch.follows_tensors());
    loaded.tensors.reserve(leaves.tensors.size());
    for (const ShardedTensor* const tensor : leaves.tensors)
      loaded.tensors.push_back(builder.add(*tensor));
    request = builder.finish();
  });
  fill_destinations(load, request);
  const auto values = fetch_objects(load, cells);
  finish_load(load, [&] {
    for (const ObjectCells& object : objects) loaded.objects.push_back(object.value(values));
    if (load.leaves == Leaves::kPlain) {
      state = plain_result(
          std::move(common), parts,
          filled(load, apply_object_rules(std::move(parts.sharded), load), loaded, unexpected));
    } else {
      state = described_result(
          load, common, state,
          restored(load, filled(load, apply_object_rules(std::move(parts.expanded), load), loaded,
                                unexpected)));
    }
  });
}

}  // namespace dckpt
