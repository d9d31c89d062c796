#include "dist_checkpointing/planner/shard_spec.h"

#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tree.h"

namespace dckpt {

ShardedLeaves collect_sharded(const StateDict& state) {
  ShardedLeaves leaves;
  visit_leaves(state, [&](const Value& leaf) {
    if (leaf.is(Value::Kind::kShardedTensor)) leaves.tensors.push_back(&leaf.as_sharded_tensor());
    if (leaf.is(Value::Kind::kShardedObject)) leaves.objects.push_back(&leaf.as_sharded_object());
  });
  return leaves;
}

TensorShard shard_spec(const ShardedTensor& tensor) {
  tensor.validate();
  TensorShard shard;
  shard.key = tensor.key;
  shard.properties.dtype = tensor.dtype;
  shard.properties.requires_grad = tensor.data && tensor.data->requires_grad;
  shard.global_shape = tensor.global_shape;
  shard.box = tensor.global_box();
  if (tensor.flattened_range)
    shard.range = TensorShard::Range{tensor.flattened_range->begin, tensor.flattened_range->end};
  shard.fragmentation = tensor.axis_fragmentations;
  shard.main_replica = tensor.replica_id.is_main();
  return shard;
}

ObjectShard shard_spec(const ShardedObject& object) {
  object.validate();
  ObjectShard shard{.key = object.unique_key(), .main_replica = object.replica_id.is_main()};
  shard.grid_key = object.key;
  shard.grid = object.global_shape;
  shard.cell = object.global_offset;
  return shard;
}

WantedShard wanted_shard(const ShardedTensor& shard) {
  WantedShard wanted;
  wanted.box = shard.global_box();
  if (shard.flattened_range)
    wanted.range = WantedShard::Range{shard.flattened_range->begin, shard.flattened_range->end};
  return wanted;
}

}  // namespace dckpt
