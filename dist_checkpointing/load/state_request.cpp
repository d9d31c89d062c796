#include "dist_checkpointing/load/state_request.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "dist_checkpointing/load/access_check.h"
#include "dist_checkpointing/load/dcp_leaves.h"
#include "dist_checkpointing/load/key_check.h"
#include "dist_checkpointing/load/merge_common.h"
#include "dist_checkpointing/load/misfit.h"
#include "dist_checkpointing/load/object_choice.h"
#include "dist_checkpointing/load/truncation.h"
#include "dist_checkpointing/planner/shard_spec.h"
#include "mapping/state/tree.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

using Leaf = RequestedLeaf;

bool is_object(const Leaf& leaf) {
  return leaf.value.is(Value::Kind::kShardedObject);
}

/// Returns the key of a sharded leaf, without the place of an object in its grid.
const std::string& key_of(const Value& leaf) {
  return leaf.is(Value::Kind::kShardedTensor) ? leaf.as_sharded_tensor().key
                                              : leaf.as_sharded_object().key;
}
const std::string& key_of(const Leaf& leaf) {
  return is_object(leaf) ? key_of(leaf.value) : leaf.name;
}

/// Returns the key that is compared with the stored ones: DCP compares cells, Megatron grids.
const std::string& compared_key(const Leaf& leaf, const OpenedCheckpoint& from) {
  return from.is_plain_dcp() ? leaf.name : key_of(leaf);
}

std::vector<Leaf> leaves_by_keys(const Value& sharded) {
  std::vector<Leaf> leaves;
  std::size_t position = 0;
  visit_leaves(sharded, [&](const Value& leaf) {
    std::string name = leaf.is(Value::Kind::kShardedTensor) ? leaf.as_sharded_tensor().key
                                                            : leaf.as_sharded_object().unique_key();
    leaves.push_back({{std::move(name), {}, leaf}, position++});
  });
  return leaves;
}

bool is_empty_container(const Value& value) {
  return (value.is_dict() || value.is_sequence()) && value.size() == 0;
}

std::vector<Leaf> leaves_by_paths(LoadCall& load, const OpenedCheckpoint& from, Value& state) {
  std::vector<Leaf> leaves;
  for (FlatLeaf& flat : leaves_as_stored(load, from, state)) {
    if (flat.value.is(Value::Kind::kLocalNonpersistentObject)) continue;
    flat.name = stored_name(flat);
    // A rank outside of a tensor's mesh has an empty container in its place.
    if (is_empty_container(flat.value) && from.keys.tensor(flat.name)) continue;
    Leaf& leaf = leaves.emplace_back(Leaf{std::move(flat)});
    leaf.was_plain = leaf.value.is_tensor() && !from.keys.object(leaf.name);
    if (leaf.was_plain) leaf.value = ShardedTensor::whole(leaf.name, leaf.value.as_tensor());
  }
  return leaves;
}

/// Returns the leaves that the state describes, among those that `is_meant` selects.
template <typename Predicate>
ShardedLeaves sharded_of(const std::vector<Leaf>& leaves, const Predicate& is_meant) {
  ShardedLeaves sharded;
  for (const Leaf& leaf : leaves) {
    if (leaf.was_plain || !is_meant(leaf)) continue;
    if (leaf.value.is(Value::Kind::kShardedTensor))
      sharded.tensors.push_back(&leaf.value.as_sharded_tensor());
    if (is_object(leaf)) sharded.objects.push_back(&leaf.value.as_sharded_object());
  }
  return sharded;
}

/// Returns the leaves of which all ranks' requests have to cover a key: where a planner fills a
/// tensor, what it reads does not tell, but the tensors of the state do. Those without elements
/// cover nothing, under whatever key a planner would read them.
template <typename Predicate>
ShardedLeaves covering(const OpenedCheckpoint& from, const std::vector<Leaf>& leaves,
                       const Predicate& is_meant) {
  ShardedLeaves sharded = sharded_of(leaves, [&](const Leaf& leaf) {
    return is_meant(leaf) && !(leaf.target && (from.planned->is_empty(*leaf.target) ||
                                               from.planned->filled_tensor(*leaf.target)));
  });
  std::optional<std::size_t> last;
  for (const Leaf& leaf : leaves) {
    if (!leaf.target || leaf.was_plain || leaf.target == last || !is_meant(leaf)) continue;
    last = leaf.target;
    if (const ShardedTensor* const tensor = from.planned->filled_tensor(*last))
      sharded.tensors.push_back(tensor);
  }
  return sharded;
}

/// Returns the tensors of the request for a planner.
std::vector<ShardedTensor> wanted_tensors(std::vector<Leaf>& leaves) {
  std::vector<ShardedTensor> wanted;
  for (Leaf& leaf : leaves) {
    if (!leaf.value.is(Value::Kind::kShardedTensor)) continue;
    leaf.target = wanted.size();
    wanted.push_back(leaf.value.as_sharded_tensor());
  }
  return wanted;
}

/// Applies a planner's changes to the request: a leaf becomes one for each box that is read for it,
/// and those that the planner leaves out are gone.
std::vector<Leaf> planned_leaves(LoadCall& load,
                                 const std::vector<std::vector<ShardedTensor>>& asked,
                                 std::vector<Leaf> leaves) {
  std::vector<Leaf> planned;
  planned.reserve(leaves.size());
  for (Leaf& leaf : leaves) {
    if (!leaf.target) {
      planned.push_back(std::move(leaf));
      continue;
    }
    const std::vector<ShardedTensor>& boxes = asked[*leaf.target];
    if (boxes.empty()) load.report.left_out.push_back(leaf.name);
    for (const ShardedTensor& box : boxes) {
      Leaf& part = planned.emplace_back(leaf);
      part.value = box;
      part.name = box.key;
    }
  }
  return planned;
}

/// Returns the requested leaves that are stored in another form.
std::vector<Misfit> misfits_of(LoadCall& load, const OpenedCheckpoint& from,
                               const std::vector<Leaf>& leaves) {
  std::vector<Misfit> misfits;
  const auto note = [&](std::optional<Misfit> misfit) {
    if (misfit) misfits.push_back(std::move(*misfit));
  };
  const bool by_paths = from.is_plain_dcp();
  for (const Leaf& leaf : leaves) {
    if (is_object(leaf)) {
      const bool may_be_missing = leaf.is_stored || load.options.allow_partial_load;
      if (!by_paths || !may_be_missing)
        note(misfit_of(leaf.value.as_sharded_object(), from.keys, load.options));
    } else if (leaf.value.is(Value::Kind::kShardedTensor)) {
      const ShardedTensor& tensor = leaf.value.as_sharded_tensor();
      if (const auto stored = from.keys.tensor(leaf.name)) {
        const TensorStorageMetadata& metadata = from.metadata().tensors[*stored];
        std::ranges::move(misfits_of_shard(tensor, metadata, load.options,
                                           from.reader->info().conventions.keys_are_paths),
                          std::back_inserter(misfits));
        note(truncation_of(load, from, tensor, metadata));
      } else if (!by_paths && from.keys.grids(leaf.name) != nullptr) {
        note(Misfit{"asked for as a tensor, but stored as an object:", leaf.name});
      }
    }
  }
  return misfits;
}

/// Checks that leaves are stored. Missing ones stay unchanged if load.missing, the strict mode or a
/// partial load tolerates them; otherwise they are an error.
void require_leaves(LoadCall& load, const OpenedCheckpoint& from, StateRequest& request,
                    std::vector<Misfit> misfits) {
  const LoadOptions& options = load.options;
  LoadReport& report = load.report;
  const bool by_paths = from.is_plain_dcp();
  KeySet misfitting;
  for (const Misfit& misfit : misfits) misfitting.insert(misfit.key);
  const auto fits = [&](const Leaf& leaf) {
    return leaf.rule == WhenResharded::kError && !misfitting.contains(key_of(leaf));
  };
  Asked asked{{}, std::move(misfits)};
  for (const Leaf& leaf : request.leaves) asked.keys.push_back(compared_key(leaf, from));
  warn_of_idle_rules(options.missing, asked.keys, load.comm, report.findings);
  if (by_paths) {
    asked.keys.clear();
    for (const Leaf& leaf : request.leaves) {
      if (!is_object(leaf) || fits(leaf)) asked.keys.push_back(leaf.name);
    }
  }
  KeySet stored;
  if (checks_unexpected(options.strict) || !options.missing.empty())
    stored = by_paths ? from.keys.names() : from.keys.keys();
  KeySet kept = take_decided(asked.keys, stored, options.missing, load.comm, report.findings).kept;
  KeyDifference found = check_keys(asked, stored, options.strict, load.comm, report.findings);
  if (returns(options.strict)) {
    report.missing.assign(found.missing.begin(), found.missing.end());
    if (!by_paths) report.unexpected.assign(found.unexpected.begin(), found.unexpected.end());
  }
  if (!by_paths) report.unexpected.insert(report.unexpected.end(), kept.begin(), kept.end());
  if (options.allow_partial_load) {
    for (const std::string& key : asked.keys) {
      if (!from.keys.contains(key)) kept.insert(key);
    }
  }
  kept.merge(found.unexpected);

  asked.keys.clear();
  for (Leaf& leaf : request.leaves) {
    leaf.stays = kept.contains(compared_key(leaf, from));
    if (leaf.stays) {
      leaf.is_stored = false;
      if (by_paths) report.unexpected.push_back(leaf.name);
    } else if (fits(leaf)) {
      asked.keys.push_back(leaf.name);
    }
  }
  request.tolerated = std::move(kept);
  require_stored(asked, from.keys, options.missing,
                 by_paths ? "Missing key in checkpoint state_dict (load.allow_partial_load keeps "
                            "the old values of such keys)"
                          : "keys are asked for that the checkpoint does not have (load.strict: "
                            "log_unexpected leaves such keys as they are)",
                 load.comm);
}

/// Gives a leaf the tensor that will be filled. The stored data decides what a leaf becomes: it is
/// a tensor even if the leaf was a plain value.
void request_tensor(const OpenedCheckpoint& from, TensorRequestBuilder& builder, Leaf& leaf) {
  if (!leaf.value.is(Value::Kind::kShardedTensor)) {
    const auto stored = from.keys.tensor(leaf.name);
    if (!stored) return;
    const TensorStorageMetadata& tensor = from.metadata().tensors[*stored];
    leaf.value = ShardedTensor::whole(leaf.name,
                                      Tensor::meta(tensor.properties.dtype, tensor.global_shape()));
    leaf.was_plain = true;
  }
  const ShardedTensor& shard = leaf.value.as_sharded_tensor();
  const bool has_data = shard.data && shard.data->has_data();
  Tensor destination = builder.add(shard);
  if (!has_data) leaf.value.mutable_sharded_tensor().data = std::move(destination);
  leaf.stays = has_data && !leaf.target;
}

void request_leaves(const LoadCall& load, const OpenedCheckpoint& from, StateRequest& request) {
  TensorRequestBuilder builder(*from.reader, from.keys, load.options, load.watch.follows_tensors());
  for (Leaf& leaf : request.leaves) {
    if (leaf.is_stored) request_tensor(from, builder, leaf);
    if (leaf.stays || leaf.value.is(Value::Kind::kShardedTensor)) continue;
    if (const auto own = from.keys.object(leaf.name))
      leaf.cells = {*own};
    else if (leaf.rule == WhenResharded::kGather)
      leaf.cells = from.keys.cells(key_of(leaf));
    std::ranges::copy(leaf.cells, std::back_inserter(request.read.objects));
  }
  request.read.tensors = builder.finish();
}

/// Gives a leaf the loaded value.
void set_object(LoadCall& load, Leaf& leaf, Value loaded) {
  if (is_object(leaf)) {
    ShardedObject& object = leaf.value.mutable_sharded_object();
    object.data = std::move(loaded);
    object.has_data = true;
    return;
  }
  if (leaf.value.is_tensor() && leaf.value.as_tensor().has_data())
    load.report.replaced.push_back({leaf.name, std::string(to_string(loaded.kind()))});
  leaf.value = std::move(loaded);
}

/// Turns a requested leaf into the loaded one.
void fill_leaf(LoadCall& load, const OpenedCheckpoint& from, Leaf& leaf,
               const ReadObjects& objects) {
  if (leaf.value.is(Value::Kind::kShardedTensor)) {
    if (leaf.target)
      leaf.value = from.planned->restored(*leaf.target, leaf.value.as_sharded_tensor());
    if (leaf.was_plain) leaf.value = Tensor(*leaf.value.as_sharded_tensor().data);
  } else if (leaf.rule == WhenResharded::kReinit) {
    leaf.value.mutable_sharded_object().data = Value();
  } else if (leaf.rule == WhenResharded::kGather) {
    ValueList values;
    for (const std::uint32_t cell : leaf.cells) values.push_back(objects.at(cell));
    set_object(load, leaf, Value::list(std::move(values)));
  } else if (!leaf.cells.empty()) {
    set_object(load, leaf, objects.at(leaf.cells.front()));
  }
}

/// Returns the tree with the loaded leaves in their places. Empty ranges get data, too.
Value with_leaves(Value tree, std::vector<Leaf> leaves, bool by_paths) {
  if (by_paths) {
    for (Leaf& leaf : leaves) replace_leaf(tree, leaf.path, std::move(leaf.value));
    return tree;
  }
  if (leaves.empty() && !any_leaf(tree, is_empty_range)) return tree;  // filled in place
  auto next = leaves.begin();
  std::size_t position = 0;
  return map_leaves(std::move(tree), [&](Value leaf) {
    if (!leaf.is_sharded()) return leaf;
    const std::size_t at = position++;
    if (next != leaves.end() && next->position == at) return std::move(next++->value);
    if (is_empty_range(leaf) && !leaf.as_sharded_tensor().data) {
      ShardedTensor& shard = leaf.mutable_sharded_tensor();
      shard.data = Tensor::empty(shard.dtype, shard.data_shape());
    }
    return leaf;
  });
}

/// Returns Megatron's result: the common state, local values, and loaded data in place of sharded
/// leaves.
Value plain_result(Value common, const Value& local, const Value& leaves) {
  Value base = common.is_none() ? Value::dict() : std::move(common);
  if (!local.is_none()) base = merge(std::move(base), local);
  if (!leaves.is_none()) base = merge(std::move(base), leaves);
  return base;
}

/// Returns the caller's tree: sharded leaves with the loaded data, the others from the common
/// state.
Value with_common(LoadCall& load, Value state, const Value& common) {
  MergedCommon merged = merge_common(std::move(state), common, load.options.cast);
  load.report.replaced = std::move(merged.replaced);
  load.report.casts.insert(load.report.casts.end(), merged.casts.begin(), merged.casts.end());
  for (const KeyPath& path : merged.kept) load.report.kept.push_back(dotted_name(path));
  return std::move(merged.state);
}

}  // namespace

StateRequest request_state(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state) {
  const bool by_paths = from.is_plain_dcp();
  StateRequest request;
  std::vector<Leaf>& leaves = request.leaves;
  std::vector<Misfit> misfits;
  const auto is_any = [](const Leaf&) { return true; };
  const auto compare = [&] {
    if (!by_paths)
      std::erase_if(leaves, [](const Leaf& leaf) { return is_empty_range(leaf.value); });
    for (Leaf& leaf : leaves) {
      leaf.is_stored = from.keys.contains(leaf.name);
      if (is_object(leaf)) leaf.rule = rule_for(leaf.value.as_sharded_object(), from);
    }
    from.reader->take(sharded_of(leaves, is_any).tensors, from.keys);
    misfits = misfits_of(load, from, leaves);
  };
  std::vector<ShardedTensor> wanted;  // by a planner
  agree(load.comm, "reading the request", [&] {
    const bool drops_empty = !by_paths && load.leaves == Leaves::kPlain;
    request.parts = split_for_load(drops_empty ? without_empty_ranges(state) : state);
    leaves = by_paths ? leaves_by_paths(load, from, request.parts.expanded)
                      : leaves_by_keys(request.parts.sharded);
    if (from.planned)
      wanted = wanted_tensors(leaves);
    else
      compare();
  });
  if (from.planned) {
    const auto asked = from.planned->plan(wanted, from.metadata(), load.comm);
    agree(load.comm, "reading the planned request", [&] {
      leaves = planned_leaves(load, asked, std::move(leaves));
      compare();
    });
  }
  if (load.options.parallel.enabled) from.reader->exchange(load.comm);
  warn_if_nothing_is_asked(from.metadata(), load.comm, !leaves.empty(),
                           by_paths ? "the state dict is empty, so nothing is loaded"
                                    : "the state dict has no ShardedTensors or ShardedObjects, so "
                                      "only the common state is loaded",
                           load.report.findings);
  require_leaves(load, from, request, std::move(misfits));
  const auto is_loaded = [&](const Leaf& leaf) {
    return leaf.is_stored || (!by_paths && !leaf.stays);
  };
  report_resharded(load, from, sharded_of(leaves, is_any).objects);
  check_access(load, covering(from, leaves, is_loaded),
               by_paths ? PlannerKind::kDcp : PlannerKind::kMegatron);
  agree(load.comm, "checking the request against the checkpoint",
        [&] { request_leaves(load, from, request); });
  return request;
}

StateDict merged(LoadCall& load, const OpenedCheckpoint& from, const StateDict& state,
                 StateRequest request, const ReadObjects& objects) {
  const bool by_keys = !from.is_plain_dcp();
  const bool plain = load.leaves == Leaves::kPlain;
  LoadRequest& parts = request.parts;
  std::erase_if(request.leaves, [](const Leaf& leaf) { return leaf.stays; });
  const auto same_tensor = [](const Leaf& a, const Leaf& b) {
    return a.target && a.target == b.target;
  };
  request.leaves.erase(std::unique(request.leaves.begin(), request.leaves.end(), same_tensor),
                       request.leaves.end());
  bool drops = false;
  for (Leaf& leaf : request.leaves) {
    fill_leaf(load, from, leaf, objects);
    drops |= leaf.rule == WhenResharded::kDrop;
  }
  Value tree = with_leaves(std::move(plain && by_keys ? parts.sharded : parts.expanded),
                           std::move(request.leaves), !by_keys);
  if (plain && by_keys && !request.tolerated.empty()) {
    const auto is_loaded = [&](const Value& leaf) {
      return !request.tolerated.contains(key_of(leaf));
    };
    tree = extract_matching(tree, is_loaded).matching;
  }
  if (drops) tree = without_dropped(std::move(tree), from);
  if (!plain) {
    tree = merge_into_factories(std::move(tree), state);
    return by_keys ? with_common(load, std::move(tree), from.common) : tree;
  }
  tree = plain_state(std::move(tree));
  if (by_keys) tree = plain_result(from.common, parts.local, tree);
  return merge_factories(std::move(tree), parts.factories);
}

}  // namespace dckpt
