#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/load/access_check.h"
#include "dist_checkpointing/load/key_check.h"
#include "dist_checkpointing/load/loaders.h"
#include "dist_checkpointing/load/merge_common.h"
#include "dist_checkpointing/load/misfit.h"
#include "dist_checkpointing/load/object_choice.h"
#include "dist_checkpointing/load/truncation.h"
#include "dist_checkpointing/planner/shard_spec.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_tree.h"
#include "mapping/state/tree.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

/// Returns the requested leaves that are stored in another form.
std::vector<Misfit> misfits_of(LoadCall& load, const OpenedCheckpoint& from, const Value& sharded) {
  std::vector<Misfit> misfits;
  const auto note = [&](std::optional<Misfit> misfit) {
    if (misfit) misfits.push_back(std::move(*misfit));
  };
  const ShardedLeaves leaves = collect_sharded(sharded);
  for (const ShardedTensor* const tensor : leaves.tensors) {
    const auto stored = from.keys.tensor(tensor->key);
    if (stored) {
      const TensorStorageMetadata& metadata = from.metadata().tensors[*stored];
      std::ranges::move(misfits_of_shard(*tensor, metadata, load.options,
                                         from.reader->info().conventions.keys_are_paths),
                        std::back_inserter(misfits));
      note(truncation_of(load, from, *tensor, metadata));
    } else if (from.keys.grids(tensor->key) != nullptr)
      note(Misfit{"asked for as a tensor, but stored as an object:", tensor->key});
  }
  for (const ShardedObject* const object : leaves.objects)
    note(misfit_of(*object, from.keys, load.options));
  return misfits;
}

const std::string& key_of(const Value& leaf) {
  return leaf.is(Value::Kind::kShardedTensor) ? leaf.as_sharded_tensor().key
                                              : leaf.as_sharded_object().key;
}

/// Returns the requested keys that are not stored, but tolerated by a rule or the strict mode.
KeySet find_unexpected(LoadCall& load, const OpenedCheckpoint& from, const Value& sharded,
                       const std::vector<Misfit>& misfits) {
  const StrictHandling strict = load.options.strict;
  if (!checks_unexpected(strict) && load.options.missing.empty()) return {};
  const ShardedLeaves leaves = collect_sharded(sharded);
  Asked asked{{}, misfits};
  for (const ShardedTensor* const tensor : leaves.tensors) asked.keys.push_back(tensor->key);
  for (const ShardedObject* const object : leaves.objects) asked.keys.push_back(object->key);
  warn_of_idle_rules(load.options.missing, asked.keys, load.comm, load.report.findings);
  const KeySet stored = from.keys.keys();
  KeySet kept =
      take_decided(asked.keys, stored, load.options.missing, load.comm, load.report.findings).kept;
  KeyDifference difference = check_keys(asked, stored, strict, load.comm, load.report.findings);
  if (returns(strict)) {
    load.report.missing.assign(difference.missing.begin(), difference.missing.end());
    load.report.unexpected.assign(difference.unexpected.begin(), difference.unexpected.end());
  }
  load.report.unexpected.insert(load.report.unexpected.end(), kept.begin(), kept.end());
  difference.unexpected.merge(kept);
  return difference.unexpected;
}

/// Checks that everything is stored as requested, including each object at its place in the grid.
void require_all(LoadCall& load, const OpenedCheckpoint& from, const Value& sharded,
                 std::vector<Misfit> misfits) {
  const ShardedLeaves leaves = collect_sharded(sharded);
  KeySet misfitting;
  for (const Misfit& misfit : misfits) misfitting.insert(misfit.key);
  Asked asked{{}, std::move(misfits)};
  for (const ShardedTensor* const tensor : leaves.tensors) {
    if (!misfitting.contains(tensor->key)) asked.keys.push_back(tensor->key);
  }
  for (const ShardedObject* const object : leaves.objects) {
    if (!misfitting.contains(object->key) && !is_excused(*object, from) &&
        !is_gathered(*object, from))
      asked.keys.push_back(object->unique_key());
  }
  require_stored(asked, from.keys, load.options.missing,
                 "keys are asked for that the checkpoint does not have (load.strict: "
                 "log_unexpected leaves such keys as they are)",
                 load.comm);
}

/// Returns whether each sharded leaf is a tensor that was filled in place.
bool is_filled_in_place(const Value& state, const std::vector<Tensor>& loaded) {
  std::size_t tensors = 0;
  const auto differs = [&](const Value& leaf) {
    if (!leaf.is_sharded()) return false;
    if (!leaf.is(Value::Kind::kShardedTensor) || is_empty_range(leaf)) return true;
    const std::optional<Tensor>& data = leaf.as_sharded_tensor().data;
    return !data || data->data() != loaded[tensors++].data();
  };
  return !any_leaf(state, differs);
}

/// Returns the tree with its sharded leaves replaced by the loaded ones; leaves that were not
/// requested stay.
Value filled(const OpenedCheckpoint& from, Value state, const KeyedLeaves& asked,
             const ReadObjects& read) {
  if (asked.unexpected.empty() && is_filled_in_place(state, asked.tensors)) return state;
  auto tensor = asked.tensors.begin();
  auto object = asked.objects.begin();
  return map_leaves(std::move(state), [&](Value leaf) {
    if (!leaf.is_sharded() || asked.unexpected.contains(key_of(leaf))) return leaf;
    if (is_empty_range(leaf)) {
      ShardedTensor& shard = leaf.mutable_sharded_tensor();
      if (!shard.data) shard.data = Tensor::empty(shard.dtype, shard.data_shape());
    } else if (leaf.is(Value::Kind::kShardedTensor)) {
      leaf.mutable_sharded_tensor().data = *tensor++;
    } else if (!is_excused(leaf, from)) {
      ShardedObject& sharded = leaf.mutable_sharded_object();
      sharded.data = (object++)->value(read);
      sharded.has_data = true;
    }
    return leaf;
  });
}

/// Returns Megatron's result: the common state, local values, and loaded data in place of sharded
/// leaves.
Value plain_result(Value common, const LoadRequest& parts, Value sharded) {
  const Value leaves = plain_state(std::move(sharded));
  Value base = common.is_none() ? Value::dict() : std::move(common);
  if (!parts.local.is_none()) base = merge(std::move(base), parts.local);
  if (!leaves.is_none()) base = merge(std::move(base), leaves);
  return merge_factories(std::move(base), parts.factories);
}

/// Returns the caller's tree: sharded leaves with the loaded data, the others from the common
/// state.
Value described_result(LoadCall& load, const Value& common, const Value& state, Value expanded) {
  MergedCommon merged =
      merge_common(merge_into_factories(std::move(expanded), state), common, load.options.cast);
  load.report.replaced = std::move(merged.replaced);
  load.report.casts.insert(load.report.casts.end(), merged.casts.begin(), merged.casts.end());
  for (const KeyPath& path : merged.kept) load.report.kept.push_back(dotted_name(path));
  return std::move(merged.state);
}

/// Returns whether there are sharded leaves. Megatron loads only the common state without them.
bool has_sharded_leaves(const Value& state) {
  const ShardedLeaves leaves = collect_sharded(state);
  return !leaves.tensors.empty() || !leaves.objects.empty();
}

/// Returns the request as a planner changes it; tensors that it leaves out become local to this
/// rank.
Value with_planned_tensors(LoadCall& load, Value expanded,
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

/// Returns the request as a planner makes it. Collective.
LoadRequest planned_parts(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state) {
  LoadRequest parts;
  std::vector<ShardedTensor> wanted;
  agree(load.comm, "reading the request", [&] {
    parts = split_for_load(state);
    any_leaf(parts.expanded, [&](const Value& leaf) {
      if (leaf.is(Value::Kind::kShardedTensor)) wanted.push_back(leaf.as_sharded_tensor());
      return false;
    });
  });
  const auto asked = from.planned->plan(wanted, from.metadata(), load.options, load.comm);
  agree(load.comm, "reading the planned request", [&] {
    LoadRequest planned =
        split_for_load(with_planned_tensors(load, std::move(parts.expanded), asked));
    parts.expanded = std::move(planned.expanded);
    parts.sharded = std::move(planned.sharded);
  });
  return parts;
}

/// Restores the tree that was passed to the planner, with the loaded data.
Value restored(const OpenedCheckpoint& from, Value expanded) {
  if (from.planned == nullptr) return expanded;
  std::size_t target = 0;
  return map_leaves(std::move(expanded), [&](Value leaf) {
    if (leaf.is(Value::Kind::kShardedTensor))
      return Value(from.planned->restored(target++, leaf.as_sharded_tensor()));
    if (leaf.is(Value::Kind::kLocalNonpersistentObject)) {
      const Value& kept = leaf.as_local_nonpersistent().value;
      if (kept.is(Value::Kind::kShardedTensor)) return ++target, kept;
    }
    return leaf;
  });
}

/// Builds the read request for the sharded leaves in `asked`.
void request_leaves(const LoadCall& load, const OpenedCheckpoint& from, const Value& asked,
                    StateRequest<KeyedLeaves>& request) {
  const ShardedLeaves leaves = collect_sharded(asked);
  for (const ShardedObject* const object : leaves.objects) {
    ObjectCells own = cells_of(*object, from);
    if (own.positions.empty()) continue;
    std::ranges::copy(own.positions, std::back_inserter(request.read.objects));
    request.of_state.objects.push_back(std::move(own));
  }
  TensorRequestBuilder builder(*from.reader, from.keys, load.options, load.watch.follows_tensors());
  request.of_state.tensors.reserve(leaves.tensors.size());
  for (const ShardedTensor* const tensor : leaves.tensors)
    request.of_state.tensors.push_back(builder.add(*tensor));
  request.read.tensors = builder.finish();
}

}  // namespace

StateRequest<KeyedLeaves> request_by_keys(LoadCall& load, const OpenedCheckpoint& from,
                                          const StateDict& state) {
  StateRequest<KeyedLeaves> request;
  LoadRequest& parts = request.of_state.parts;
  std::vector<Misfit> misfits;
  Value asked;  // the sharded leaves that will be read
  if (from.planned) parts = planned_parts(load, from, state);
  agree(load.comm, "reading the request", [&] {
    if (!from.planned)
      parts = split_for_load(load.leaves == Leaves::kPlain ? without_empty_ranges(state) : state);
    if (!parts.sharded.is_none()) asked = without_empty_ranges(parts.sharded);
    from.reader->take(asked, from.keys);
    misfits = misfits_of(load, from, asked);
  });
  if (load.options.parallel.enabled) from.reader->exchange(load.comm);
  warn_if_nothing_is_asked(from.metadata(), load.comm, has_sharded_leaves(asked),
                           "the state dict has no ShardedTensors or ShardedObjects, so only the "
                           "common state is loaded",
                           load.report.findings);
  const KeySet unexpected = find_unexpected(load, from, asked, misfits);
  if (!unexpected.empty()) {
    const auto is_stored = [&](const Value& leaf) { return !unexpected.contains(key_of(leaf)); };
    asked = extract_matching(asked, is_stored).matching;
    if (load.leaves == Leaves::kPlain)
      parts.sharded = extract_matching(parts.sharded, is_stored).matching;
  }
  report_resharded(load, from, asked);
  require_all(load, from, asked, std::move(misfits));
  check_access(load, asked, PlannerKind::kMegatron);
  agree(load.comm, "checking the request against the checkpoint",
        [&] { request_leaves(load, from, asked, request); });
  request.of_state.unexpected = unexpected;
  return request;
}

StateDict merged(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state,
                 KeyedLeaves asked, const ReadObjects& objects) {
  const bool plain = load.leaves == Leaves::kPlain;
  Value tree = std::move(plain ? asked.parts.sharded : asked.parts.expanded);
  tree = filled(from, apply_object_rules(std::move(tree), load, from), asked, objects);
  return plain ? plain_result(from.common, asked.parts, std::move(tree))
               : described_result(load, from.common, state, restored(from, std::move(tree)));
}

}  // namespace dckpt
