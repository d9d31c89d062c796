#pragma once

#include <vector>

#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/state/value.h"

namespace dckpt {

/// The sharded leaves of a state dict in the order of the tree, as pointers that are valid while
/// the tree is neither changed nor destroyed.
struct ShardedLeaves {
  std::vector<const ShardedTensor*> tensors;
  std::vector<const ShardedObject*> objects;
};

/// Collects the sharded leaves. Factories must have been applied before.
ShardedLeaves collect_sharded(const StateDict& state);

/// Returns a tensor's description for planning and validates it (Megatron's messages). The caller
/// sets `source`.
TensorShard shard_spec(const ShardedTensor& tensor);

/// Returns the same for an object; the caller sets `nbytes` and `source`.
ObjectShard shard_spec(const ShardedObject& object);

/// Returns the part of a stored tensor that a shard requests. The caller sets `tensor` and
/// `destination`.
WantedShard wanted_shard(const ShardedTensor& shard);

}  // namespace dckpt
