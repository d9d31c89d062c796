#include "mapping/state/optimizer.h"

#include <utility>

#include "mapping/base/error.h"
#include "mapping/state/tree.h"

namespace dckpt {
namespace {

const Tensor* data_of(const Value& leaf) {
  if (leaf.is(Value::Kind::kShardedTensorFactory)) return &leaf.as_factory().data;
  if (!leaf.is(Value::Kind::kShardedTensor)) return nullptr;
  const auto& data = leaf.as_sharded_tensor().data;
  return data ? &*data : nullptr;
}

}  // namespace

ShardedParams map_sharded_params(const Value& model_state, std::span<const Tensor> params) {
  std::map<const std::byte*, std::int64_t> numbers;
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].numel() > 0 && params[i].data() != nullptr)
      numbers.emplace(params[i].data(), static_cast<std::int64_t>(i));
  }
  ShardedParams found;
  visit_leaves(model_state, [&](const Value& leaf) {
    const Tensor* const data = data_of(leaf);
    if (data == nullptr || data->numel() == 0) return;
    const auto number = numbers.find(data->data());
    if (number == numbers.end()) return;
    if (data->shape() == params[static_cast<std::size_t>(number->second)].shape())
      found.insert_or_assign(number->second, leaf);
  });
  return found;
}

Value make_sharded_optimizer_tensor(const Value& model_param, Tensor data,
                                    std::string_view prefix) {
  const auto prefixed = [&](const std::string& key) { return str_format("{}.{}", prefix, key); };
  if (model_param.is(Value::Kind::kShardedTensorFactory)) {
    ShardedTensorFactory factory = model_param.as_factory();
    factory.key = prefixed(factory.key);
    factory.data = std::move(data);
    return factory;
  }
  ShardedTensor shard = model_param.as_sharded_tensor();
  if (data.shape() != shard.local_shape) {
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "Optimizer shape {} does not match model shape {}", to_string(data.shape()),
                to_string(shard.local_shape));
  }
  shard.key = prefixed(shard.key);
  shard.dtype = data.dtype();
  shard.data = std::move(data);
  shard.validate();
  return shard;
}

void shard_optimizer_state(Value& optimizer_state, const ShardedParams& params,
                           const std::set<std::string>& exclude) {
  Value sharded = Value::dict();
  for (const auto& [number, state] : optimizer_state.at("state").as_dict()) {
    Value& target = sharded[number];
    target = Value::dict();
    for (const auto& [name, tensor] : state.as_dict()) {
      if (exclude.contains(name.as_str())) continue;
      const auto param = params.find(number.as_int());
      if (param == params.end()) {
        throw_error(ErrorCode::kInvalidArgument,
                    "Param id {} does not match any model sharded param{}", number.as_int(),
                    params.empty() ? ": no parameter of the optimizer is in the model's sharded "
                                     "state dict; the two must refer to the same memory"
                                   : "");
      }
      target[name] = make_sharded_optimizer_tensor(param->second, tensor.as_tensor(),
                                                   "optimizer.state." + name.as_str());
    }
  }
  Value groups = optimizer_state.at("param_groups");
  for (Value& group : groups.mutable_items()) {
    Value& numbers = group["params"];
    numbers = LocalNonpersistentObject{std::exchange(numbers, {})};
  }
  optimizer_state["param_groups"] = std::move(groups);
  optimizer_state["state"] = std::move(sharded);
}

}  // namespace dckpt
