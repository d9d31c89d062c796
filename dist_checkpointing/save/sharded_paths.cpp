#include "dist_checkpointing/save/sharded_paths.h"

#include <vector>

#include "mapping/base/error.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tree.h"

namespace dckpt {
namespace {

bool describes_tensor(const Value& leaf) {
  return leaf.is(Value::Kind::kShardedTensor) || leaf.is(Value::Kind::kShardedTensorFactory);
}

}  // namespace

ShardedPaths::ShardedPaths(const StateDict& loaded) {
  visit_leaves(loaded, [&](const KeyPath& path, const Value& leaf) {
    if (leaf.is(Value::Kind::kShardedTensor)) {
      key_at_.emplace(path, leaf.as_sharded_tensor().key);
    } else if (leaf.is(Value::Kind::kShardedTensorFactory)) {
      key_at_.emplace(path, leaf.as_factory().key);
    }
  });
}

void ShardedPaths::require_still_sharded(const StateDict& state) const {
  if (key_at_.empty()) return;
  std::vector<std::string> plain;
  visit_leaves(state, [&](const KeyPath& path, const Value& leaf) {
    if (!leaf.is_tensor()) return;
    const auto found = key_at_.find(path);
    if (found != key_at_.end()) plain.push_back(found->second);
  });
  if (plain.empty()) return;
  throw_error(ErrorCode::kInvalidArgument, {.key = plain.front()},
              "the state has plain tensors in place of the ShardedTensors that were loaded: {}; "
              "only rank 0's parts would be saved. Save the tree that load() has filled, or "
              "describe the tensors with ShardedTensor",
              quoted_list(plain));
}

TensorKinds tensor_kinds(const StateDict& state) {
  TensorKinds kinds;
  visit_leaves(state, [&](const Value& leaf) {
    kinds.sharded |= describes_tensor(leaf);
    kinds.plain |= leaf.is_tensor();
  });
  return kinds;
}

}  // namespace dckpt
