#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/access_check.h"
#include "dist_checkpointing/load/dcp_leaves.h"
#include "dist_checkpointing/load/empty_request.h"
#include "dist_checkpointing/load/fill.h"
#include "dist_checkpointing/load/finish_load.h"
#include "dist_checkpointing/load/key_check.h"
#include "dist_checkpointing/load/loaders.h"
#include "dist_checkpointing/load/misfit.h"
#include "dist_checkpointing/load/object_choice.h"
#include "dist_checkpointing/load/truncation.h"
#include "mapping/state/sharded_tree.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

/// What one leaf of the state becomes.
struct LeafRequest {
  KeyPath path;
  Value value;       ///< the leaf, then what was loaded
  std::string name;  ///< under which it is stored
  bool is_stored = false;
  bool is_excused = false;              ///< by load.objects
  std::optional<std::size_t> target{};  ///< of the planner
  bool was_plain = false;               ///< a tensor without a description, before the planner
};

bool is_empty_container(const Value& value) {
  return (value.is_dict() || value.is_sequence()) && value.size() == 0;
}

std::vector<LeafRequest> requested_leaves_of(const LoadContext& load, Value& state) {
  std::vector<LeafRequest> requested;
  for (FlatLeaf& leaf : leaves_as_stored(load, state)) {
    if (leaf.value.is(Value::Kind::kLocalNonpersistentObject)) continue;
    std::string name = stored_name(leaf);
    // What a rank outside of a tensor's mesh has in its place.
    if (is_empty_container(leaf.value) && load.keys.tensor(name)) continue;
    const bool is_stored = load.keys.contains(name);
    const bool excused =
        is_excused(leaf.value, load) || (leaf.value.is(Value::Kind::kShardedObject) &&
                                         is_gathered(leaf.value.as_sharded_object(), load));
    requested.push_back(
        {std::move(leaf.path), std::move(leaf.value), std::move(name), is_stored, excused});
  }
  return requested;
}

/// The tensors of the request, as a planner sees them; `leaves`: where each of them is in it.
std::vector<ShardedTensor> wanted_tensors(const LoadContext& load,
                                          const std::vector<LeafRequest>& requested,
                                          std::vector<std::size_t>& leaves) {
  std::vector<ShardedTensor> wanted;
  for (std::size_t i = 0; i < requested.size(); ++i) {
    const Value& leaf = requested[i].value;
    if (leaf.is(Value::Kind::kShardedTensor))
      wanted.push_back(leaf.as_sharded_tensor());
    else if (leaf.is_tensor() && !load.keys.object(requested[i].name))
      wanted.push_back(ShardedTensor::whole(requested[i].name, leaf.as_tensor()));
    else
      continue;
    leaves.push_back(i);
  }
  return wanted;
}

/// The same request as a planner changes it: what it leaves out is not in it.
void ask_for(const LoadContext& load, const std::vector<std::optional<ShardedTensor>>& asked,
             const std::vector<std::size_t>& leaves, std::vector<LeafRequest>& requested) {
  std::vector<bool> left_out(requested.size());
  for (std::size_t target = 0; target < asked.size(); ++target) {
    LeafRequest& leaf_request = requested[leaves[target]];
    if (!asked[target]) {
      left_out[leaves[target]] = true;
      load.report.left_out.push_back(leaf_request.name);
      continue;
    }
    leaf_request.was_plain = leaf_request.value.is_tensor();
    leaf_request.target = target;
    leaf_request.value = *asked[target];
    leaf_request.name = asked[target]->key;
    leaf_request.is_stored = load.keys.contains(leaf_request.name);
  }
  std::size_t i = 0;
  std::erase_if(requested, [&](const LeafRequest&) { return left_out[i++]; });
}

/// Lets the planner change the request. The call is collective.
void plan_tensors(const LoadContext& load, std::vector<LeafRequest>& requested) {
  std::vector<ShardedTensor> wanted;
  std::vector<std::size_t> leaves;
  agree(load.comm, "reading the request",
        [&] { wanted = wanted_tensors(load, requested, leaves); });
  const auto asked = load.planned->plan(wanted, load.reader.metadata(), load.options, load.comm);
  agree(load.comm, "reading the planned request", [&] { ask_for(load, asked, leaves, requested); });
}

/// The leaf that the planner was asked with, and what was loaded in it.
void restore(const LoadContext& load, LeafRequest& leaf_request) {
  if (!leaf_request.target) return;
  ShardedTensor tensor =
      load.planned->restored(*leaf_request.target, leaf_request.value.as_sharded_tensor());
  leaf_request.value =
      leaf_request.was_plain ? Value(*std::move(tensor.data)) : Value(std::move(tensor));
}

/// What of the request is stored otherwise.
std::vector<Misfit> misfits_of(const LoadContext& load, const std::vector<LeafRequest>& requested) {
  std::vector<Misfit> misfits;
  for (const LeafRequest& leaf_request : requested) {
    const auto note = [&](std::optional<Misfit> misfit) {
      if (misfit) misfits.push_back(std::move(*misfit));
    };
    const auto stored = load.keys.tensor(leaf_request.name);
    if (!leaf_request.is_stored && !load.options.allow_partial_load &&
        leaf_request.value.is(Value::Kind::kShardedObject))
      note(misfit_of(leaf_request.value.as_sharded_object(), load.keys, load.options));
    else if (stored && (leaf_request.value.is(Value::Kind::kShardedTensor) ||
                        leaf_request.value.is_tensor())) {
      const TensorStorageMetadata& metadata = load.reader.metadata().tensors[*stored];
      const ShardedTensor shard =
          leaf_request.value.is_tensor()
              ? ShardedTensor::whole(leaf_request.name, leaf_request.value.as_tensor())
              : leaf_request.value.as_sharded_tensor();
      std::vector<Misfit> of_shard = misfits_of_shard(shard, metadata, load.options, true);
      if (of_shard.empty()) note(truncation_of(load, shard, metadata));
      std::ranges::move(of_shard, std::back_inserter(misfits));
    }
  }
  return misfits;
}

/// Leaves that are not stored keep their values if the load is partial, or the strict mode one that
/// goes on without them; else they are an error.
void check_names(const LoadContext& load, const std::vector<LeafRequest>& requested) {
  Asked asked{{}, misfits_of(load, requested)};
  KeySet misfitting;
  for (const Misfit& misfit : asked.misfits) misfitting.insert(misfit.key);
  for (const LeafRequest& leaf_request : requested) {
    const bool is_misfit = leaf_request.value.is(Value::Kind::kShardedObject) &&
                           misfitting.contains(leaf_request.value.as_sharded_object().key);
    if (!leaf_request.is_excused && !is_misfit) asked.keys.push_back(leaf_request.name);
  }
  const DecidedKeys decided =
      take_decided(asked.keys, load.options.missing.empty() ? KeySet() : load.keys.names(),
                   load.options.missing, load.comm);
  if (!load.options.allow_partial_load && checks_unexpected(load.options.strict)) {
    const KeyDifference difference =
        check_keys(asked, load.keys.names(), load.options.strict, load.comm);
    if (returns(load.options.strict))
      load.report.missing.assign(difference.missing.begin(), difference.missing.end());
  }
  if (load.options.allow_partial_load || checks_unexpected(load.options.strict)) asked.keys.clear();
  asked.keys.insert(asked.keys.end(), decided.refused.begin(), decided.refused.end());
  require_stored(asked, load.keys,
                 "Missing key in checkpoint state_dict (load.allow_partial_load keeps the old "
                 "values of such keys)",
                 load.comm);
  for (const LeafRequest& leaf_request : requested) {
    if (!leaf_request.is_stored && !leaf_request.is_excused)
      load.report.unexpected.push_back(leaf_request.name);
  }
}

/// Gives a leaf the tensor that will be filled. What is stored decides what a leaf becomes: a
/// tensor also where a plain value stood.
void request_tensor(const LoadContext& load, TensorRequestBuilder& builder,
                    LeafRequest& leaf_request) {
  if (leaf_request.value.is(Value::Kind::kShardedTensor)) {
    Tensor destination = builder.add(leaf_request.value.as_sharded_tensor());
    leaf_request.value.mutable_sharded_tensor().data = std::move(destination);
    return;
  }
  const auto stored = load.keys.tensor(leaf_request.name);
  if (!stored) return;
  const TensorStorageMetadata& tensor = load.reader.metadata().tensors[*stored];
  leaf_request.value = builder.add(ShardedTensor::whole(
      leaf_request.name, leaf_request.value.is_tensor()
                             ? leaf_request.value.as_tensor()
                             : Tensor::meta(tensor.properties.dtype, tensor.global_shape())));
}

/// Gives a leaf the value that was loaded.
void set_object(const LoadContext& load, LeafRequest& leaf_request, const Value& loaded) {
  Value& leaf = leaf_request.value;
  if (!leaf.is(Value::Kind::kShardedObject)) {
    if (leaf.is_tensor() && leaf.as_tensor().has_data())
      load.report.replaced.push_back({leaf_request.name, std::string(to_string(loaded.kind()))});
    leaf = loaded;
    return;
  }
  ShardedObject& object = leaf.mutable_sharded_object();
  object.data = loaded;
  object.has_data = true;
}

/// Where the value of a leaf is stored as an object.
ObjectCells cells_of(const LeafRequest& leaf_request, const LoadContext& load) {
  if (const auto object = load.keys.object(leaf_request.name)) return {{*object}};
  return leaf_request.value.is(Value::Kind::kShardedObject)
             ? cells_of(leaf_request.value.as_sharded_object(), load)
             : ObjectCells{};
}

/// The sharded leaves among those that `is_meant` chooses.
Value sharded_of(const std::vector<LeafRequest>& requested, bool (*is_meant)(const LeafRequest&)) {
  ValueList leaves;
  for (const LeafRequest& leaf_request : requested) {
    if (leaf_request.value.is_sharded() && is_meant(leaf_request))
      leaves.push_back(leaf_request.value);
  }
  return Value::list(std::move(leaves));
}

}  // namespace

void load_dcp(const LoadContext& load, StateDict& state) {
  LoadRequest parts;
  std::vector<LeafRequest> requested;
  TensorRequest request;
  std::vector<std::uint32_t> objects;  // positions in the metadata
  agree(load.comm, "reading the request", [&] {
    parts = split_for_load(state);
    requested = requested_leaves_of(load, parts.expanded);
  });
  if (load.planned != nullptr) plan_tensors(load, requested);
  agree(load.comm, "reading the request", [&] {
    load.shapes->take(sharded_of(requested, [](const LeafRequest&) { return true; }), load.keys);
  });
  if (load.options.parallel.enabled) load.shapes->exchange(load.comm);
  warn_if_nothing_is_asked(load, !requested.empty(),
                           "the state dict is empty, so nothing is loaded");
  report_resharded(load, sharded_of(requested, [](const LeafRequest& leaf_request) {
                     return leaf_request.is_excused;
                   }));
  check_names(load, requested);
  load.report.access_checked = load.options.validate_access_integrity;
  if (load.options.validate_access_integrity)
    check_access(sharded_of(requested,
                            [](const LeafRequest& leaf_request) { return leaf_request.is_stored; }),
                 PlannerKind::kDcp, load.comm, &load.plan_cache);
  agree(load.comm, "checking the request against the checkpoint", [&] {
    TensorRequestBuilder builder(load.reader, load.keys, load.options,
                                 load.watch.follows_tensors());
    for (LeafRequest& leaf_request : requested) {
      if (leaf_request.is_stored) request_tensor(load, builder, leaf_request);
      const ObjectCells cells = cells_of(leaf_request, load);
      objects.insert(objects.end(), cells.positions.begin(), cells.positions.end());
    }
    request = builder.finish();
  });
  fill_destinations(load, request);
  const auto values = fetch_objects(load, objects);
  finish_load(load, [&] {
    for (LeafRequest& leaf_request : requested) {
      if (const ObjectCells cells = cells_of(leaf_request, load); !cells.positions.empty())
        set_object(load, leaf_request, cells.value(values));
      restore(load, leaf_request);
      replace_leaf(parts.expanded, leaf_request.path, std::move(leaf_request.value));
    }
    parts.expanded = apply_object_rules(std::move(parts.expanded), load);
    state = load.leaves == Leaves::kPlain
                ? merge_factories(plain_state(std::move(parts.expanded)), parts.factories)
                : merge_into_factories(std::move(parts.expanded), state);
  });
}

}  // namespace dckpt
