#include "strategies/describe.h"

#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tree.h"

namespace dckpt {

ShardedLeaves collect_sharded(const StateDict& state) {
  ShardedLeaves leaves;
  visit_leaves(state, [&](const KeyPath&, const Value& leaf) {
    if (leaf.is(Value::Kind::kShardedTensor)) leaves.tensors.push_back(&leaf.as_sharded_tensor());
    if (leaf.is(Value::Kind::kShardedObject)) leaves.objects.push_back(&leaf.as_sharded_object());
  });
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
