#include <utility>
#include <vector>

#include "dist_checkpointing/load/fill.h"
#include "dist_checkpointing/load/key_check.h"
#include "dist_checkpointing/load/loaders.h"
#include "mapping/state/flatten.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

/// What will stand at a leaf's place: the tensor that will be filled, or the leaf until its object is read.
Value request_leaf(const LoadContext& load, TensorRequestBuilder& builder, const FlatLeaf& leaf, bool partial) {
  if (leaf.value.is(Value::Kind::kShardedTensor)) {
    const ShardedTensor& shard = leaf.value.as_sharded_tensor();
    if (partial && !load.keys.tensor(shard.key)) return leaf.value;
    const auto destination = builder.add(shard);
    return destination ? Value(*destination) : leaf.value;
  }
  if (const auto stored = load.keys.tensor(leaf.name)) {
    const auto destination = builder.add_whole(*stored, leaf.value.is_tensor() ? &leaf.value.as_tensor() : nullptr);
    return destination ? Value(*destination) : leaf.value;
  }
  if (load.keys.object(leaf.name)) return leaf.value;
  if (partial) {
    load.report.unexpected.push_back(leaf.name);
  } else {
    builder.add_unknown(leaf.name);
  }
  return leaf.value;
}

}  // namespace

void load_dcp(const LoadContext& load, StateDict& state) {
  std::vector<FlatLeaf> leaves;
  std::vector<Value> loaded;
  TensorRequest request;
  const bool partial = checks_unexpected(load.options.strict) && !raises(load.options.strict);
  agree(load.comm, "checking the request against the checkpoint", [&] {
    TensorRequestBuilder builder(load.reader, load.keys, load.options);
    leaves = flatten_state_dict(state);
    for (const FlatLeaf& leaf : leaves) loaded.push_back(request_leaf(load, builder, leaf, partial));
    request = builder.finish();
  });
  const ReadStats stats = fill_destinations(load.reader, request, load.options, load.comm);
  load.report.bytes_wanted = stats.bytes_wanted;
  load.report.bytes_read = stats.bytes_read;
  agree(load.comm, "reading objects", [&] {
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      if (!loaded[i].is_tensor()) {
        if (const auto object = load.keys.object(leaves[i].name)) loaded[i] = load.reader.object(*object);
      }
      set_element(state, leaves[i].path, std::move(loaded[i]));
    }
  });
}

}  // namespace dckpt
