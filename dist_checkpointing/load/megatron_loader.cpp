#include <string>

#include "dist_checkpointing/load/access_check.h"
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
  if (!checks_unexpected(load.options.strict)) return sharded;
  const ShardedLeaves leaves = collect_sharded(sharded);
  KeySet asked;
  for (const ShardedTensor* const tensor : leaves.tensors) asked.insert(tensor->key);
  for (const ShardedObject* const object : leaves.objects) asked.insert(object->key);
  const KeyDifference difference = check_keys(asked, load.keys.keys(), load.options.strict, load.comm);
  if (returns(load.options.strict)) {
    load.report.missing.assign(difference.missing.begin(), difference.missing.end());
    load.report.unexpected.assign(difference.unexpected.begin(), difference.unexpected.end());
  }
  if (difference.unexpected.empty()) return sharded;
  return extract_matching(sharded, [&](const Value& leaf) { return !difference.unexpected.contains(key_of(leaf)); }).matching;
}

/// That everything is stored, each object at its place in the grid, too.
void require_all(const LoadContext& load, const Value& sharded) {
  const ShardedLeaves leaves = collect_sharded(sharded);
  KeySet asked;
  for (const ShardedTensor* const tensor : leaves.tensors) asked.insert(tensor->key);
  for (const ShardedObject* const object : leaves.objects) asked.insert(object->unique_key());
  require_stored(asked, load.keys, "keys are asked for that the checkpoint does not have", load.comm);
}

std::uint32_t position_of(const LoadContext& load, const ShardedObject& object) {
  const auto position = load.keys.object(object.unique_key());
  if (!position) throw CheckpointError(ErrorCode::kMismatch, "asked for as an object, but stored as a tensor", {.key = object.unique_key()});
  return *position;
}

}  // namespace

void load_megatron(const LoadContext& load, Value common, StateDict& state) {
  LoadRequest parts;
  TensorRequest request;
  std::vector<std::uint32_t> objects;
  agree(load.comm, "reading the request", [&] { parts = split_for_load(state); });
  if (load.options.validate_access_integrity) check_access(parts.sharded, load.comm);
  parts.sharded = drop_unexpected(load, std::move(parts.sharded));
  require_all(load, parts.sharded);
  agree(load.comm, "checking the request against the checkpoint", [&] {
    for (const ShardedObject* const object : collect_sharded(parts.sharded).objects) objects.push_back(position_of(load, *object));
    TensorRequestBuilder builder(load.reader, load.keys, load.options);
    parts.sharded = map_leaves(std::move(parts.sharded), [&](Value leaf) { return leaf.is(Value::Kind::kShardedTensor) ? Value(builder.add(leaf.as_sharded_tensor())) : leaf; });
    request = builder.finish();
  });
  const ReadStats stats = fill_destinations(load.reader, request, load.options, load.comm, load.planner);
  load.report.bytes_wanted = stats.bytes_wanted;
  load.report.bytes_read = stats.bytes_read;
  const auto values = fetch_objects(load.reader, objects, load.options, load.comm);
  agree(load.comm, "putting the state together", [&] {
    Value loaded = map_leaves(std::move(parts.sharded), [&](Value leaf) { return leaf.is(Value::Kind::kShardedObject) ? values.at(position_of(load, leaf.as_sharded_object())) : leaf; });
    Value base = common.is_none() ? Value::dict() : std::move(common);
    if (!parts.local.is_none()) base = merge(std::move(base), std::move(parts.local));
    if (!loaded.is_none()) base = merge(std::move(base), std::move(loaded));
    state = merge_factories(std::move(base), parts.factories);
  });
}

}  // namespace dckpt
