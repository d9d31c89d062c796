#include "strategies/describe.h"

#include "mapping/base/error.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {
namespace {

constexpr int kMaxDepth = 1000;

void collect(const Value& value, int depth, ShardedLeaves& leaves) {
  if (depth > kMaxDepth) throw CheckpointError(ErrorCode::kInvalidArgument, "the state dict is nested deeper than " + std::to_string(kMaxDepth) + " levels");
  switch (value.kind()) {
    case Value::Kind::kDict:
      for (const auto& [key, item] : value.as_dict()) collect(item, depth + 1, leaves);
      break;
    case Value::Kind::kList:
    case Value::Kind::kTuple:
      for (const Value& item : value.items()) collect(item, depth + 1, leaves);
      break;
    case Value::Kind::kShardedTensor: leaves.tensors.push_back(&value.as_sharded_tensor()); break;
    case Value::Kind::kShardedObject: leaves.objects.push_back(&value.as_sharded_object()); break;
    default: break;
  }
}

}  // namespace

ShardedLeaves collect_sharded(const StateDict& state) {
  ShardedLeaves leaves;
  collect(state, 0, leaves);
  return leaves;
}

std::vector<TensorShard> describe_tensors(const ShardedLeaves& leaves) {
  std::vector<TensorShard> shards;
  shards.reserve(leaves.tensors.size());
  for (const ShardedTensor* const leaf : leaves.tensors) {
    leaf->validate();
    TensorShard shard;
    shard.key = leaf->key;
    shard.properties.dtype = leaf->dtype;
    shard.properties.requires_grad = leaf->data && leaf->data->requires_grad;
    shard.global_shape = leaf->global_shape;
    shard.box = leaf->global_box();
    if (leaf->flattened_range) shard.range = TensorShard::Range{leaf->flattened_range->begin, leaf->flattened_range->end};
    shard.fragmentation = leaf->axis_fragmentations;
    shard.main_replica = leaf->replica_id.is_main();
    shard.source = static_cast<std::uint32_t>(shards.size());
    shards.push_back(std::move(shard));
  }
  return shards;
}

WantedShard describe_wanted(const ShardedTensor& shard) {
  WantedShard wanted;
  wanted.box = shard.global_box();
  if (shard.flattened_range) wanted.range = WantedShard::Range{shard.flattened_range->begin, shard.flattened_range->end};
  return wanted;
}

}  // namespace dckpt
