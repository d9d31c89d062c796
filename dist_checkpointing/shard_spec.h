#pragma once

#include <vector>

#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/state/value.h"

namespace dckpt {

/// The sharded leaves of a state dict in the order of the tree. Pointers into the tree: valid while
/// it is neither changed nor destroyed.
struct ShardedLeaves {
  std::vector<const ShardedTensor*> tensors;
  std::vector<const ShardedObject*> objects;
};

/// Collects them. Factories must have been applied before.
ShardedLeaves collect_sharded(const StateDict& state);

/// What planning needs to know about a tensor; the caller sets `source`. Validates it (Megatron's
/// messages).
TensorShard shard_spec(const ShardedTensor& tensor);

/// The same for an object; the caller sets `nbytes` and `source`.
ObjectShard shard_spec(const ShardedObject& object);

/// The part of a stored tensor that a shard requests. The caller sets `tensor` and `destination`.
WantedShard wanted_shard(const ShardedTensor& shard);

}  // namespace dckpt
