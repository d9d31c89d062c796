#include <set>
#include <string>

#include "dist_checkpointing/load/fill.h"
#include "dist_checkpointing/load/key_check.h"
#include "dist_checkpointing/load/loaders.h"
#include "mapping/state/sharded_tree.h"
#include "strategies/comm/agree.h"
#include "strategies/describe.h"

namespace dckpt {
namespace {

const std::string& key_of(const Value& leaf) { return leaf.is(Value::Kind::kShardedTensor) ? leaf.as_sharded_tensor().key : leaf.as_sharded_object().key; }

/// The leaves without those that the strict mode drops because they are not stored.
Value drop_unexpected(const LoadContext& load, Value sharded) {
  const ShardedLeaves leaves = collect_sharded(sharded);
  std::set<std::string> asked;
  for (const ShardedTensor* const tensor : leaves.tensors) asked.insert(tensor->key);
  for (const ShardedObject* const object : leaves.objects) asked.insert(object->key);
  const KeyDifference difference = check_keys(asked, load.keys.all(), load.options.strict, load.comm);
  if (returns(load.options.strict)) {
    load.report.missing.assign(difference.missing.begin(), difference.missing.end());
    load.report.unexpected.assign(difference.unexpected.begin(), difference.unexpected.end());
  }
  if (difference.unexpected.empty()) return sharded;
  return extract_matching(sharded, [&](const Value& leaf) { return !difference.unexpected.contains(key_of(leaf)); }).matching;
}

/// Replaces tensors by those that will be filled. Objects stay until they are read.
Value request_leaf(const LoadContext& load, TensorRequestBuilder& builder, Value leaf) {
  if (leaf.is(Value::Kind::kShardedObject)) {
    const std::string unique_key = leaf.as_sharded_object().unique_key();
    if (!load.keys.object(unique_key)) builder.add_unknown(unique_key);
    return leaf;
  }
  const auto destination = builder.add(leaf.as_sharded_tensor());
  return destination ? Value(*destination) : leaf;
}

Value read_object(const LoadContext& load, Value leaf) {
  if (!leaf.is(Value::Kind::kShardedObject)) return leaf;
  return load.reader.object(*load.keys.object(leaf.as_sharded_object().unique_key()));
}

}  // namespace

void load_megatron(const LoadContext& load, Value common, StateDict& state) {
  LoadRequest parts;
  TensorRequest request;
  agree(load.comm, "reading the request", [&] { parts = split_for_load(state); });
  parts.sharded = drop_unexpected(load, std::move(parts.sharded));
  agree(load.comm, "checking the request against the checkpoint", [&] {
    TensorRequestBuilder builder(load.reader, load.keys, load.options);
    parts.sharded = map_leaves(std::move(parts.sharded), [&](Value leaf) { return request_leaf(load, builder, std::move(leaf)); });
    request = builder.finish();
  });
  const ReadStats stats = fill_destinations(load.reader, request, load.options, load.comm);
  load.report.bytes_wanted = stats.bytes_wanted;
  load.report.bytes_read = stats.bytes_read;
  agree(load.comm, "reading objects", [&] {
    Value loaded = map_leaves(std::move(parts.sharded), [&](Value leaf) { return read_object(load, std::move(leaf)); });
    Value base = common.is_none() ? Value::dict() : std::move(common);
    if (!parts.local.is_none()) base = merge(std::move(base), std::move(parts.local));
    if (!loaded.is_none()) base = merge(std::move(base), std::move(loaded));
    state = merge_factories(std::move(base), parts.factories);
  });
}

}  // namespace dckpt
