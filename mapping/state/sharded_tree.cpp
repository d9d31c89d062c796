#include "mapping/state/sharded_tree.h"

#include "mapping/base/error.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

bool is_factory(const Value& leaf) { return leaf.is(Value::Kind::kShardedTensorFactory); }
bool is_local(const Value& leaf) { return leaf.is(Value::Kind::kLocalNonpersistentObject); }

/// Ranges without elements, as some ranks of an unevenly cut optimizer have them: nothing to store, nothing to load.
bool is_empty_range(const Value& leaf) {
  if (!leaf.is(Value::Kind::kShardedTensor)) return false;
  const auto& range = leaf.as_sharded_tensor().flattened_range;
  return range && range->begin == range->end;
}

Value without_empty_ranges(const Value& state) { return extract_matching(state, is_empty_range).rest; }

/// A sharded leaf under another key.
template <typename Rename>
Value renamed(Value leaf, const Rename& rename) {
  if (leaf.is(Value::Kind::kShardedTensor)) {
    ShardedTensor& shard = leaf.mutable_sharded_tensor();
    shard.key = rename(shard.key);
  } else if (leaf.is(Value::Kind::kShardedObject)) {
    ShardedObject& object = leaf.mutable_sharded_object();
    object.key = rename(object.key);
  } else if (is_factory(leaf)) {
    ShardedTensorFactory factory = leaf.as_factory();
    factory.key = rename(factory.key);
    return factory;
  }
  return leaf;
}

template <typename Rename>
void rename_all(Value& state, const Rename& rename) {
  // On a copy, which shares what does not change: an exception leaves the state as it was.
  state = map_leaves(state, [&](Value leaf) { return renamed(std::move(leaf), rename); });
}

}  // namespace

Value apply_factories(Value state) {
  return map_leaves(std::move(state), [](Value leaf) {
    if (!is_factory(leaf)) return leaf;
    const ShardedTensorFactory& factory = leaf.as_factory();
    if (!factory.build) throw CheckpointError(ErrorCode::kInvalidArgument, "the factory has no build function", {.key = factory.key});
    return factory.build(factory.key, factory.data, factory.replica_id, factory.flattened_range);
  });
}

Value merge_factories(Value loaded, const Value& factories) {
  const auto apply = [](const Value& built, const Value& leaf) -> std::optional<Value> {
    if (!is_factory(leaf)) return std::nullopt;
    const ShardedTensorFactory& factory = leaf.as_factory();
    if (!factory.merge) throw CheckpointError(ErrorCode::kInvalidArgument, "the factory has no merge function", {.key = factory.key});
    return factory.merge(built);
  };
  return merge(std::move(loaded), factories, {.take = apply, .add_keys = false, .positions = true});
}

Split split_for_save(Value state) {
  Extracted parts = extract_matching(apply_factories(std::move(state)), is_local);
  parts = extract_matching(parts.rest, [](const Value& leaf) { return leaf.is_sharded(); });
  return {without_empty_ranges(parts.matching), std::move(parts.rest)};
}

LoadRequest split_for_load(const Value& state) {
  const Value wanted = without_empty_ranges(state);
  Value factories = extract_matching(wanted, is_factory, ListForm::kDict).matching;
  factories = map_leaves(std::move(factories), [](const Value& leaf) {
    ShardedTensorFactory factory = leaf.as_factory();
    factory.data = Tensor();
    return Value(std::move(factory));
  });
  const Extracted parts = extract_matching(apply_factories(wanted), is_local);
  Value local = map_leaves(parts.matching, [](const Value& leaf) { return leaf.as_local_nonpersistent().value; });
  return {extract_matching(parts.rest, [](const Value& leaf) { return leaf.is_sharded(); }).matching, std::move(local), std::move(factories)};
}

void add_prefix_for_sharding(Value& state, std::string_view prefix) {
  rename_all(state, [&](const std::string& key) { return std::string(prefix) + key; });
}

void replace_prefix_for_sharding(Value& state, std::string_view old_prefix, std::string_view new_prefix) {
  rename_all(state, [&](const std::string& key) {
    if (!key.starts_with(old_prefix)) {
      throw CheckpointError(ErrorCode::kInvalidArgument, "Expected " + printable(key) + " to begin with prefix " + printable(old_prefix), {.key = key});
    }
    return std::string(new_prefix) + key.substr(old_prefix.size());
  });
}

void apply_prefix_mapping(Value& state, std::span<const std::pair<std::string, std::string>> prefixes) {
  rename_all(state, [&](const std::string& key) {
    for (const auto& [old_prefix, new_prefix] : prefixes) {
      if (key.starts_with(old_prefix)) return new_prefix + key.substr(old_prefix.size());
    }
    return key;
  });
}

}  // namespace dckpt
