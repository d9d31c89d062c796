#include "mapping/state/optimizer_slots.h"

#include <algorithm>
#include <set>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/state/optimizer.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/tree.h"

namespace dckpt {
namespace {

bool is_described_param(const Value& leaf) {
  return leaf.is(Value::Kind::kShardedTensor) || leaf.is(Value::Kind::kShardedTensorFactory);
}

/// Returns whether state has the axis of a parameter.
bool keeps(StateCut cut, std::size_t axis, std::size_t axes) {
  switch (cut) {
    case StateCut::kParam: return true;
    case StateCut::kRow: return axis + 1 != axes;
    case StateCut::kColumn: return axis + 2 != axes;
    case StateCut::kNumber: return false;
  }
  return false;
}

/// Returns a description of the state of a factory's parameter without data: as of the first of its
/// tensors, which are parts of its rows.
ShardedTensor shard_like(const ShardedTensorFactory& param, std::string key,
                         const OptimizerSlot& slot) {
  if (slot.cut == StateCut::kRow || !slot.stacked.empty()) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "the parameter is stored as several tensors (a factory), of which state by row or "
                "with stacked axes cannot be made; keep an element for each of its elements, or "
                "describe this state with a factory of your own");
  }
  const Value built = param.build(param.key, param.data, param.replica_id, param.flattened_range);
  const ShardedTensor* first = nullptr;
  visit_leaves(built, [&](const Value& leaf) {
    if (first == nullptr && leaf.is(Value::Kind::kShardedTensor)) first = &leaf.as_sharded_tensor();
  });
  if (first == nullptr)
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "the factory of the parameter builds no ShardedTensor");
  return shard_like(*first, std::move(key), slot.cut, slot.stacked);
}

Tensor tensor_of_slot(const OptimizerSlot& slot, const Shape& shape) {
  if (!slot.tensor) throw_error(ErrorCode::kInvalidArgument, "the slot has no function `tensor`");
  Tensor tensor = slot.tensor(shape);
  if (tensor.shape() != shape) {
    throw_error(ErrorCode::kInvalidArgument,
                "the optimizer keeps {} for the parameter, but its slot has the shape {}",
                to_string(tensor), to_string(shape));
  }
  return tensor;
}

Value described_slot(const Value& param, const OptimizerSlot& slot, std::string_view prefix) {
  const bool is_factory = param.is(Value::Kind::kShardedTensorFactory);
  const std::string& param_key =
      is_factory ? param.as_factory().key : param.as_sharded_tensor().key;
  std::string key = str_format("{}.{}.{}", prefix, slot.name, param_key);
  return with_context({.key = key}, [&]() -> Value {
    if (is_factory && slot.cut == StateCut::kParam && slot.stacked.empty()) {
      ShardedTensorFactory factory = param.as_factory();
      factory.key = std::move(key);
      factory.data = tensor_of_slot(slot, factory.data.shape());
      return factory;
    }
    ShardedTensor shard =
        is_factory ? shard_like(param.as_factory(), std::move(key), slot)
                   : shard_like(param.as_sharded_tensor(), std::move(key), slot.cut, slot.stacked);
    shard.data = tensor_of_slot(slot, shard.data_shape());
    shard.dtype = shard.data->dtype();
    shard.validate();
    return shard;
  });
}

}  // namespace

ShardedTensor shard_like(const ShardedTensor& param, std::string key, StateCut cut,
                         const Shape& stacked) {
  const std::size_t axes = param.local_shape.size();
  const auto prepended = static_cast<std::size_t>(param.prepend_axis_num);
  const bool by_axis = cut == StateCut::kRow || cut == StateCut::kColumn;
  if (by_axis && axes < 2) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "state by row or column needs a parameter with at least two axes, but its shape "
                "on this rank is {}; keep an element for each of its elements",
                to_string(param.local_shape));
  }
  if (param.flattened_range && (by_axis || !stacked.empty())) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "state by row or column or with stacked axes cannot be cut like a flattened range "
                "of the parameter; describe the whole local tensor");
  }
  ShardedTensor state = param;
  state.key = std::move(key);
  state.data.reset();
  if (cut == StateCut::kParam && stacked.empty()) return state;

  if (!param.axis_fragmentations) state.axis_fragmentations.reset();
  state.local_shape = stacked;
  state.global_shape.resize(prepended);
  state.global_offset.resize(prepended);
  if (state.axis_fragmentations) state.axis_fragmentations->resize(prepended);
  const auto add = [&](std::int64_t extent, std::int64_t offset, std::int64_t pieces) {
    state.global_shape.push_back(extent);
    state.global_offset.push_back(offset);
    if (state.axis_fragmentations) state.axis_fragmentations->push_back(pieces);
  };
  for (const std::int64_t extent : stacked) add(extent, 0, 1);
  Shape replica;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const std::size_t global = prepended + axis;
    if (!keeps(cut, axis, axes)) {
      replica.push_back(param.global_offset[global]);
      continue;
    }
    state.local_shape.push_back(param.local_shape[axis]);
    add(param.global_shape[global], param.global_offset[global],
        param.axis_fragmentations ? (*param.axis_fragmentations)[global] : 1);
  }
  if (replica.empty() && !param.flattened_range) return state;
  replica.insert(replica.end(), param.replica_id.parts().begin(), param.replica_id.parts().end());
  replica.push_back(param.flattened_range ? param.flattened_range->begin : 0);
  state.replica_id = ReplicaId(std::move(replica));
  state.flattened_range.reset();
  return state;
}

Value optimizer_state(const Value& params, const OptimizerHook& hook, std::string_view prefix) {
  std::vector<std::string> names;
  std::vector<std::vector<std::pair<std::string, Value>>> states;  // of each parameter
  visit_leaves(params, [&](const Value& leaf) {
    if (!is_described_param(leaf)) return;
    const bool is_factory = leaf.is(Value::Kind::kShardedTensorFactory);
    const std::string& key = is_factory ? leaf.as_factory().key : leaf.as_sharded_tensor().key;
    const ShardedTensor* const shard = is_factory ? nullptr : &leaf.as_sharded_tensor();
    const Tensor data = is_factory    ? leaf.as_factory().data
                        : shard->data ? *shard->data
                                      : Tensor::meta(shard->dtype, shard->data_shape());
    auto& own = states.emplace_back();
    for (const OptimizerSlot& slot : hook(key, data)) {
      if (std::ranges::find(own, slot.name, &std::pair<std::string, Value>::first) != own.end()) {
        throw_error(ErrorCode::kInvalidArgument, {.key = key},
                    "the optimizer has two slots with the name {} for a parameter",
                    quote(slot.name));
      }
      own.emplace_back(slot.name, described_slot(leaf, slot, prefix));
      if (std::ranges::find(names, slot.name) == names.end()) names.push_back(slot.name);
    }
  });
  Value result = Value::dict();
  if (names.empty()) return result;
  const Value tensors = extract_matching(params, is_described_param, ListForm::kDict).matching;
  for (const std::string& name : names) {
    std::size_t number = 0;
    const Value all = map_leaves(tensors, [&](const Value&) {
      auto& own = states[number++];
      const auto found = std::ranges::find(own, name, &std::pair<std::string, Value>::first);
      return found == own.end() ? Value() : std::move(found->second);
    });
    result[name] = extract_matching(all, is_described_param).matching;
  }
  return result;
}

}  // namespace dckpt
