#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/access_check.h"
#include "dist_checkpointing/load/dcp_leaves.h"
#include "dist_checkpointing/load/key_check.h"
#include "dist_checkpointing/load/loaders.h"
#include "dist_checkpointing/load/misfit.h"
#include "dist_checkpointing/load/object_choice.h"
#include "dist_checkpointing/load/truncation.h"
#include "mapping/state/sharded_tree.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

using Leaf = PathLeaves::Leaf;

bool is_empty_container(const Value& value) {
  return (value.is_dict() || value.is_sequence()) && value.size() == 0;
}

std::vector<Leaf> requested_leaves_of(LoadCall& load, const OpenedCheckpoint& from, Value& state) {
  std::vector<Leaf> requested;
  for (FlatLeaf& leaf : leaves_as_stored(load, from, state)) {
    if (leaf.value.is(Value::Kind::kLocalNonpersistentObject)) continue;
    std::string name = stored_name(leaf);
    // A rank outside of a tensor's mesh has an empty container in its place.
    if (is_empty_container(leaf.value) && from.keys.tensor(name)) continue;
    const bool is_stored = from.keys.contains(name);
    const bool excused =
        is_excused(leaf.value, from) || (leaf.value.is(Value::Kind::kShardedObject) &&
                                         is_gathered(leaf.value.as_sharded_object(), from));
    requested.push_back(
        {std::move(leaf.path), std::move(leaf.value), std::move(name), is_stored, excused});
  }
  return requested;
}

/// Returns the tensors of the request in the form that a planner gets; `leaves` receives their
/// positions in the request.
std::vector<ShardedTensor> wanted_tensors(const OpenedCheckpoint& from,
                                          const std::vector<Leaf>& requested,
                                          std::vector<std::size_t>& leaves) {
  std::vector<ShardedTensor> wanted;
  for (std::size_t i = 0; i < requested.size(); ++i) {
    const Value& leaf = requested[i].value;
    if (leaf.is(Value::Kind::kShardedTensor))
      wanted.push_back(leaf.as_sharded_tensor());
    else if (leaf.is_tensor() && !from.keys.object(requested[i].name))
      wanted.push_back(ShardedTensor::whole(requested[i].name, leaf.as_tensor()));
    else
      continue;
    leaves.push_back(i);
  }
  return wanted;
}

/// Applies a planner's changes to the request, without the parts that it leaves out.
void ask_for(LoadCall& load, const OpenedCheckpoint& from,
             const std::vector<std::optional<ShardedTensor>>& asked,
             const std::vector<std::size_t>& leaves, std::vector<Leaf>& requested) {
  std::vector<bool> left_out(requested.size());
  for (std::size_t target = 0; target < asked.size(); ++target) {
    Leaf& leaf = requested[leaves[target]];
    if (!asked[target]) {
      left_out[leaves[target]] = true;
      load.report.left_out.push_back(leaf.name);
      continue;
    }
    leaf.was_plain = leaf.value.is_tensor();
    leaf.target = target;
    leaf.value = *asked[target];
    leaf.name = asked[target]->key;
    leaf.is_stored = from.keys.contains(leaf.name);
  }
  std::size_t i = 0;
  std::erase_if(requested, [&](const Leaf&) { return left_out[i++]; });
}

/// Lets the planner change the request. Collective.
void plan_tensors(LoadCall& load, const OpenedCheckpoint& from, std::vector<Leaf>& requested) {
  std::vector<ShardedTensor> wanted;
  std::vector<std::size_t> leaves;
  agree(load.comm, "reading the request",
        [&] { wanted = wanted_tensors(from, requested, leaves); });
  const auto asked = from.planned->plan(wanted, from.metadata(), load.options, load.comm);
  agree(load.comm, "reading the planned request",
        [&] { ask_for(load, from, asked, leaves, requested); });
}

/// Restores the leaf that was passed to the planner, with the loaded data.
void restore(const OpenedCheckpoint& from, Leaf& leaf) {
  if (!leaf.target) return;
  ShardedTensor tensor = from.planned->restored(*leaf.target, leaf.value.as_sharded_tensor());
  leaf.value = leaf.was_plain ? Value(*std::move(tensor.data)) : Value(std::move(tensor));
}

/// Returns the requested leaves that are stored in another form.
std::vector<Misfit> misfits_of(LoadCall& load, const OpenedCheckpoint& from,
                               const std::vector<Leaf>& requested) {
  std::vector<Misfit> misfits;
  for (const Leaf& leaf : requested) {
    const auto note = [&](std::optional<Misfit> misfit) {
      if (misfit) misfits.push_back(std::move(*misfit));
    };
    const auto stored = from.keys.tensor(leaf.name);
    if (!leaf.is_stored && !load.options.allow_partial_load &&
        leaf.value.is(Value::Kind::kShardedObject))
      note(misfit_of(leaf.value.as_sharded_object(), from.keys, load.options));
    else if (stored && (leaf.value.is(Value::Kind::kShardedTensor) || leaf.value.is_tensor())) {
      const TensorStorageMetadata& metadata = from.metadata().tensors[*stored];
      const ShardedTensor shard = leaf.value.is_tensor()
                                      ? ShardedTensor::whole(leaf.name, leaf.value.as_tensor())
                                      : leaf.value.as_sharded_tensor();
      std::vector<Misfit> of_shard = misfits_of_shard(shard, metadata, load.options, true);
      if (of_shard.empty()) note(truncation_of(load, from, shard, metadata));
      std::ranges::move(of_shard, std::back_inserter(misfits));
    }
  }
  return misfits;
}

std::vector<std::string> names_of(const std::vector<Leaf>& leaves) {
  std::vector<std::string> names;
  for (const Leaf& leaf : leaves) names.push_back(leaf.name);
  return names;
}

/// Checks that leaves are stored. Missing ones keep their values if the load is partial or the
/// strict mode tolerates them; otherwise they are an error.
void check_names(LoadCall& load, const OpenedCheckpoint& from, const std::vector<Leaf>& requested) {
  Asked asked{{}, misfits_of(load, from, requested)};
  KeySet misfitting;
  for (const Misfit& misfit : asked.misfits) misfitting.insert(misfit.key);
  for (const Leaf& leaf : requested) {
    const bool is_misfit = leaf.value.is(Value::Kind::kShardedObject) &&
                           misfitting.contains(leaf.value.as_sharded_object().key);
    if (!leaf.is_excused && !is_misfit) asked.keys.push_back(leaf.name);
  }
  warn_of_idle_rules(load.options.missing, names_of(requested), load.comm, load.report.findings);
  const DecidedKeys decided =
      take_decided(asked.keys, load.options.missing.empty() ? KeySet() : from.keys.names(),
                   load.options.missing, load.comm, load.report.findings);
  if (!load.options.allow_partial_load && checks_unexpected(load.options.strict)) {
    const KeyDifference difference =
        check_keys(asked, from.keys.names(), load.options.strict, load.comm, load.report.findings);
    if (returns(load.options.strict))
      load.report.missing.assign(difference.missing.begin(), difference.missing.end());
  }
  if (load.options.allow_partial_load || checks_unexpected(load.options.strict)) asked.keys.clear();
  asked.keys.insert(asked.keys.end(), decided.refused.begin(), decided.refused.end());
  require_stored(asked, from.keys, load.options.missing,
                 "Missing key in checkpoint state_dict (load.allow_partial_load keeps the old "
                 "values of such keys)",
                 load.comm);
  for (const Leaf& leaf : requested) {
    if (!leaf.is_stored && !leaf.is_excused) load.report.unexpected.push_back(leaf.name);
  }
}

/// Gives a leaf the tensor that will be filled. The stored data decides what a leaf becomes: it is
/// a tensor even if the leaf was a plain value.
void request_tensor(const OpenedCheckpoint& from, TensorRequestBuilder& builder, Leaf& leaf) {
  if (leaf.value.is(Value::Kind::kShardedTensor)) {
    Tensor destination = builder.add(leaf.value.as_sharded_tensor());
    leaf.value.mutable_sharded_tensor().data = std::move(destination);
    return;
  }
  const auto stored = from.keys.tensor(leaf.name);
  if (!stored) return;
  const TensorStorageMetadata& tensor = from.metadata().tensors[*stored];
  leaf.value = builder.add(ShardedTensor::whole(
      leaf.name, leaf.value.is_tensor()
                     ? leaf.value.as_tensor()
                     : Tensor::meta(tensor.properties.dtype, tensor.global_shape())));
}

/// Gives a leaf the loaded value.
void set_object(LoadCall& load, Leaf& leaf, const Value& loaded) {
  Value& value = leaf.value;
  if (value.is(Value::Kind::kShardedObject)) {
    ShardedObject& object = value.mutable_sharded_object();
    object.data = loaded;
    object.has_data = true;
    return;
  }
  if (value.is_tensor() && value.as_tensor().has_data())
    load.report.replaced.push_back({leaf.name, std::string(to_string(loaded.kind()))});
  value = loaded;
}

/// Returns the objects in which the value of a leaf is stored.
ObjectCells cells_of(const Leaf& leaf, const OpenedCheckpoint& from) {
  if (const auto object = from.keys.object(leaf.name)) return {{*object}};
  return leaf.value.is(Value::Kind::kShardedObject) ? cells_of(leaf.value.as_sharded_object(), from)
                                                    : ObjectCells{};
}

/// Returns the sharded leaves among those that `is_meant` selects.
Value sharded_of(const std::vector<Leaf>& requested, bool (*is_meant)(const Leaf&)) {
  ValueList leaves;
  for (const Leaf& leaf : requested) {
    if (leaf.value.is_sharded() && is_meant(leaf)) leaves.push_back(leaf.value);
  }
  return Value::list(std::move(leaves));
}

/// Returns the read request for the leaves, which get the tensors to be filled.
ReadRequest request_leaves(const LoadCall& load, const OpenedCheckpoint& from,
                           std::vector<Leaf>& leaves) {
  ReadRequest read;
  TensorRequestBuilder builder(*from.reader, from.keys, load.options, load.watch.follows_tensors());
  for (Leaf& leaf : leaves) {
    if (leaf.is_stored) request_tensor(from, builder, leaf);
    std::ranges::copy(cells_of(leaf, from).positions, std::back_inserter(read.objects));
  }
  read.tensors = builder.finish();
  return read;
}

}  // namespace

StateRequest<PathLeaves> request_by_paths(LoadCall& load, const OpenedCheckpoint& from,
                                          const StateDict& state) {
  StateRequest<PathLeaves> request;
  auto& parts = request.of_state.parts;
  auto& leaves = request.of_state.leaves;
  agree(load.comm, "reading the request", [&] {
    parts = split_for_load(state);
    leaves = requested_leaves_of(load, from, parts.expanded);
  });
  if (from.planned) plan_tensors(load, from, leaves);
  agree(load.comm, "reading the request", [&] {
    from.reader->take(sharded_of(leaves, [](const Leaf&) { return true; }), from.keys);
  });
  if (load.options.parallel.enabled) from.reader->exchange(load.comm);
  warn_if_nothing_is_asked(from.metadata(), load.comm, !leaves.empty(),
                           "the state dict is empty, so nothing is loaded", load.report.findings);
  report_resharded(load, from,
                   sharded_of(leaves, [](const Leaf& leaf) { return leaf.is_excused; }));
  check_names(load, from, leaves);
  check_access(load, sharded_of(leaves, [](const Leaf& leaf) { return leaf.is_stored; }),
               PlannerKind::kDcp);
  agree(load.comm, "checking the request against the checkpoint",
        [&] { request.read = request_leaves(load, from, leaves); });
  return request;
}

StateDict merged(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state,
                 PathLeaves asked, const ReadObjects& objects) {
  Value tree = std::move(asked.parts.expanded);
  for (Leaf& leaf : asked.leaves) {
    if (const ObjectCells cells = cells_of(leaf, from); !cells.positions.empty())
      set_object(load, leaf, cells.value(objects));
    restore(from, leaf);
    replace_leaf(tree, leaf.path, std::move(leaf.value));
  }
  tree = apply_object_rules(std::move(tree), load, from);
  return load.leaves == Leaves::kPlain
             ? merge_factories(plain_state(std::move(tree)), asked.parts.factories)
             : merge_into_factories(std::move(tree), state);
}

}  // namespace dckpt
