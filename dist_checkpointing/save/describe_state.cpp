#include "dist_checkpointing/save/describe_state.h"

#include <unordered_set>

#include "configs/policy/separation_hint.h"
#include "dist_checkpointing/planner/shard_spec.h"
#include "mapping/base/error.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/sharded_tree.h"
#include "mapping/state/tree.h"
#include "strategies/contract/common_state.h"
#include "strategies/device/registry.h"
#include "strategies/registry/registry.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

/// Determines whether this rank may have to write a shard (the main replica always, others if all
/// replicas share the work), and by which conventions.
struct Writers {
  bool replicas = false;
  Conventions conventions{};
  bool compares = false;  ///< the objects of replicas are compared
  bool may_write(bool main_replica) const noexcept { return main_replica || replicas; }
};

void check_saveable(const std::string& key, const Tensor& tensor) {
  std::string reason = tensor.has_data() ? unreachable(tensor.device()) : "has no data to save";
  if (reason.empty()) return;
  throw_error(tensor.has_data() ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
              {.key = key}, to_string(tensor) + " " + reason);
}

void add_tensor(DescribedState& out, TensorShard shard, Tensor data) {
  shard.source = static_cast<std::uint32_t>(out.tensors.size());
  out.shards.emplace_back(std::move(shard));
  out.tensors.push_back(std::move(data));
}

void add_object(DescribedState& out, ObjectShard shard, Bytes bytes) {
  shard.nbytes = bytes.size();
  shard.source = static_cast<std::uint32_t>(out.object_bytes.size());
  out.shards.emplace_back(std::move(shard));
  out.object_bytes.push_back(std::move(bytes));
}

void add_sharded_tensor(DescribedState& out, const ShardedTensor& tensor, Writers writers) {
  TensorShard shard = shard_spec(tensor);
  if (writers.may_write(shard.main_replica)) {
    if (!tensor.data)
      throw_error(ErrorCode::kInvalidArgument, {.key = tensor.key},
                  "`data` attr is None for " + to_string(tensor));
    check_saveable(tensor.key, *tensor.data);
  }
  add_tensor(out, std::move(shard),
             tensor.data ? *tensor.data : Tensor::meta(tensor.dtype, tensor.data_shape()));
}

void add_sharded_object(DescribedState& out, const ShardedObject& object, Writers writers) {
  ObjectShard shard = shard_spec(object);
  const bool writes =
      writers.may_write(shard.main_replica) || (writers.compares && object.has_data);
  add_object(out, std::move(shard),
             writes ? stored_object(object.data, writers.conventions) : Bytes());
}

/// Describes a state in Megatron's form: keys of sharded leaves, and a common state. Replicas are
/// described too, so that the plan can be checked as a whole.
DescribedState describe_megatron(const StateDict& state, Compat compat, Writers writers, int rank) {
  DescribedState out;
  const SplitState split = split_for_save(state);
  visit_leaves(split.sharded, [&](const Value& leaf) {
    if (leaf.is(Value::Kind::kShardedTensor)) {
      add_sharded_tensor(out, leaf.as_sharded_tensor(), writers);
      std::get<TensorShard>(out.shards.back()).properties.requires_grad =
          false;                                        // as in Megatron's metadata
    } else if (leaf.is(Value::Kind::kShardedObject)) {  // main replicas write them
      add_sharded_object(out, leaf.as_sharded_object(),
                         {.conventions = writers.conventions, .compares = writers.compares});
    }
  });
  out.own_common = split.common.is_none() ? Value::dict() : split.common;
  if (rank != 0) return out;
  if (common_form(compat) == CommonForm::kFile)
    out.common = out.own_common;
  else
    add_object(out, {.key = kCommonStateKey}, stored_object(out.own_common, writers.conventions));
  return out;
}

/// Returns the path at which a reader without knowledge of shards puts the whole: the path that the
/// key names, if the leaf is at or below it (for several shards in a list, that of the list),
/// otherwise the key itself.
KeyPath place_of(const std::string& key, const KeyPath& leaf) {
  for (std::size_t steps = 1; steps <= leaf.size(); ++steps) {
    KeyPath place(leaf.begin(), leaf.begin() + static_cast<std::ptrdiff_t>(steps));
    if (dotted_name(place) == key) return place;
  }
  return {key};
}

/// Returns the entries of the top level, each as one leaf.
std::vector<FlatLeaf> unflattened_leaves(const StateDict& state) {
  std::vector<FlatLeaf> leaves;
  for (const auto& [key, value] : state.as_dict()) {
    const std::optional<std::string> text = key_text(key);
    if (!text)
      throw_error(ErrorCode::kInvalidArgument,
                  "a key of the state is of kind {}; keys are text, integers, "
                  "bools or none",
                  to_string(key.kind()));
    const std::string& name = *text;
    const bool is_leaf = value.is_sharded() || value.is(Value::Kind::kLocalNonpersistentObject);
    const auto is_described = [](const Value& leaf) {
      return leaf.is_sharded() || leaf.is(Value::Kind::kLocalNonpersistentObject);
    };
    if (!is_leaf && any_leaf(value, is_described))
      throw_error(ErrorCode::kInvalidArgument, {.key = name},
                  "save.flatten: false stores it as one object, but there are "
                  "ShardedTensors, ShardedObjects or local objects in it; put these at "
                  "the top level of the state, or leave save.flatten at true");
    leaves.push_back({.name = name, .path = {name}, .value = value});
  }
  return leaves;
}

/// Describes a state in DCP's form: every leaf under its path, and every rank plans all that it
/// has.
DescribedState describe_dcp(const StateDict& state, bool flatten) {
  constexpr Writers kAll{.replicas = true, .conventions = kDcpConventions};
  DescribedState out;
  std::unordered_set<std::string> placed;
  const auto add_path = [&](const std::string& key, KeyPath path) {
    if (flatten && placed.insert(key).second) out.paths.emplace_back(key, std::move(path));
  };
  const Value expanded = apply_factories(state);
  for (const FlatLeaf& leaf :
       flatten ? flatten_state_dict(expanded) : unflattened_leaves(expanded)) {
    switch (leaf.value.kind()) {
      case Value::Kind::kShardedTensor: {
        const ShardedTensor& tensor = leaf.value.as_sharded_tensor();
        add_sharded_tensor(out, tensor, kAll);
        add_path(tensor.key, place_of(tensor.key, leaf.path));
        continue;
      }
      case Value::Kind::kShardedObject: {
        const ShardedObject& object = leaf.value.as_sharded_object();
        add_sharded_object(out, object, kAll);
        add_path(object.unique_key(), place_of(object.unique_key(), leaf.path));
        continue;
      }
      case Value::Kind::kLocalNonpersistentObject: continue;
      case Value::Kind::kTensor: {
        const Tensor& tensor = leaf.value.as_tensor();
        check_saveable(leaf.name, tensor);
        TensorShard shard;
        shard.key = leaf.name;
        shard.properties.dtype = tensor.dtype();
        shard.properties.requires_grad = tensor.requires_grad;
        shard.global_shape = tensor.shape();
        shard.box = whole(tensor.shape());
        out.plain.push_back({leaf.name, leaf.value});
        add_tensor(out, std::move(shard), tensor);
        break;
      }
      default:
        out.plain.push_back(
            {leaf.name, leaf.value, static_cast<std::uint32_t>(out.object_bytes.size())});
        add_object(out, {.key = leaf.name}, stored_object(leaf.value, kAll.conventions));
    }
    add_path(leaf.name, leaf.path);
  }
  return out;
}

}  // namespace

DescribedState describe_state(const StateDict& state, const SaveOptions& options, int rank) {
  check_separation_hint(options.separation_hint);
  if (planner_kind(options) != PlannerKind::kMegatron) return describe_dcp(state, options.flatten);
  const SaveStrategyEntry& strategy =
      find_save_strategy(options.strategy.name, options.strategy.version);
  return describe_megatron(state, options.compat,
                           {.replicas = options.parallel.enabled,
                            .conventions = strategy.conventions,
                            .compares = options.check_replicas != CheckReplicas::kOff},
                           rank);
}

}  // namespace dckpt
