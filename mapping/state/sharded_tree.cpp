#include "mapping/state/sharded_tree.h"

#include "mapping/base/error.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/state/destination.h"

namespace dckpt {
namespace {

bool is_factory(const Value& leaf) {
  return leaf.is(Value::Kind::kShardedTensorFactory);
}
bool is_local(const Value& leaf) {
  return leaf.is(Value::Kind::kLocalNonpersistentObject);
}

/// Returns a sharded leaf under another key.
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
  // The change is made on a copy, which shares everything unchanged: an exception leaves the state
  // as it was.
  state = map_leaves(state, [&](Value leaf) { return renamed(std::move(leaf), rename); });
}

}  // namespace

bool is_empty_range(const Value& leaf) {
  if (!leaf.is(Value::Kind::kShardedTensor)) return false;
  const auto& range = leaf.as_sharded_tensor().flattened_range;
  return range && range->begin == range->end;
}

Value without_empty_ranges(const Value& state) {
  return extract_matching(state, is_empty_range).rest;
}

Value apply_factories(Value state) {
  if (!any_leaf(state, is_factory)) return state;  // mapping would copy dicts that others share
  return map_leaves(std::move(state), [](Value leaf) {
    if (!is_factory(leaf)) return leaf;
    const ShardedTensorFactory& factory = leaf.as_factory();
    if (!factory.build)
      throw_error(ErrorCode::kInvalidArgument, {.key = factory.key},
                  "the factory has no build function");
    return factory.build(factory.key, factory.data, factory.replica_id, factory.flattened_range);
  });
}

Value merge_factories(Value loaded, const Value& factories) {
  const auto apply = [](const Value& built, const Value& leaf) -> std::optional<Value> {
    if (!is_factory(leaf)) return std::nullopt;
    const ShardedTensorFactory& factory = leaf.as_factory();
    if (!factory.merge)
      throw_error(ErrorCode::kInvalidArgument, {.key = factory.key},
                  "the factory has no merge function");
    return factory.merge(built);
  };
  return merge(std::move(loaded), factories, {.take = apply, .add_keys = false, .positions = true});
}

namespace {

/// Puts a merged tensor where the factory's is.
Value refilled(ShardedTensorFactory factory, const Value& merged) {
  if (!merged.is_tensor()) {
    throw_error(ErrorCode::kInvalidArgument, {.key = factory.key},
                "the factory merged what was loaded into a {}, which it "
                "cannot hold; return one tensor, or use load_plain()",
                to_string(merged.kind()));
  }
  const Tensor& from = merged.as_tensor();
  const Tensor& into = factory.data;
  const bool fits =
      into.has_data() && into.dtype() == from.dtype() && equal(into.shape(), from.shape());
  if (!fits) {
    factory.data = from;
  } else if (into.data() != from.data()) {
    if (into.device().kind != Device::Kind::kCpu || from.device().kind != Device::Kind::kCpu) {
      throw_error(ErrorCode::kUnsupported, {.key = factory.key},
                  "the factory merged what was loaded in other memory than its tensor's, "
                  "and one of the two is not of the CPU; return the tensor itself, or "
                  "use load_plain()");
    }
    if (const std::string reason = unfit_to_load_into(into); !reason.empty()) {
      throw_error(ErrorCode::kInvalidArgument, {.key = factory.key},
                  "the factory's tensor " + reason);
    }
    strided_copy(into.shape(), item_size(into.dtype()), from.data(), {0, from.strides()},
                 into.mutable_data(), {0, into.strides()});
  }
  return factory;
}

}  // namespace

Value plain_state(Value state) {
  return map_leaves(std::move(state), [](Value leaf) -> Value {
    switch (leaf.kind()) {
      case Value::Kind::kShardedTensor: {
        const std::optional<Tensor>& data = leaf.as_sharded_tensor().data;
        return data ? Value(*data) : Value();
      }
      case Value::Kind::kShardedObject: return leaf.as_sharded_object().data;
      case Value::Kind::kShardedTensorFactory: return leaf.as_factory().data;
      case Value::Kind::kLocalNonpersistentObject: return leaf.as_local_nonpersistent().value;
      default: return leaf;
    }
  });
}

Value merge_into_factories(Value loaded, const Value& state) {
  if (!any_leaf(state, is_factory)) return loaded;
  Value factories = extract_matching(state, is_factory, ListForm::kDict).matching;
  factories = map_leaves(std::move(factories), [](const Value& leaf) {
    ShardedTensorFactory keeping = leaf.as_factory();
    keeping.merge = [factory = leaf.as_factory()](const Value& built) {
      if (!factory.merge)
        throw_error(ErrorCode::kInvalidArgument, {.key = factory.key},
                    "the factory has no merge function");
      return refilled(factory, factory.merge(plain_state(built)));
    };
    return Value(std::move(keeping));
  });
  return merge_factories(std::move(loaded), factories);
}

SplitState split_for_save(Value state) {
  ExtractedLeaves parts = extract_matching(apply_factories(std::move(state)), is_local);
  parts = extract_matching(parts.rest, [](const Value& leaf) { return leaf.is_sharded(); });
  return {without_empty_ranges(parts.matching), std::move(parts.rest)};
}

LoadRequest split_for_load(const Value& state) {
  Value factories = Value::dict();
  if (any_leaf(state, is_factory)) {
    factories = extract_matching(state, is_factory, ListForm::kDict).matching;
    factories = map_leaves(std::move(factories), [](const Value& leaf) {
      ShardedTensorFactory factory = leaf.as_factory();
      factory.data = Tensor();
      return Value(std::move(factory));
    });
  }
  Value expanded = apply_factories(state);
  const ExtractedLeaves parts = extract_matching(expanded, is_local);
  Value local = map_leaves(parts.matching,
                           [](const Value& leaf) { return leaf.as_local_nonpersistent().value; });
  Value sharded =
      extract_matching(parts.rest, [](const Value& leaf) { return leaf.is_sharded(); }).matching;
  return {std::move(expanded), std::move(sharded), std::move(local), std::move(factories)};
}

void add_prefix_for_sharding(Value& state, std::string_view prefix) {
  rename_all(state, [&](const std::string& key) { return std::string(prefix) + key; });
}

void replace_prefix_for_sharding(Value& state, std::string_view old_prefix,
                                 std::string_view new_prefix) {
  rename_all(state, [&](const std::string& key) {
    if (!key.starts_with(old_prefix)) {
      throw_error(ErrorCode::kInvalidArgument, {.key = key}, "Expected {} to begin with prefix {}",
                  printable(key), printable(old_prefix));
    }
    return std::string(new_prefix) + key.substr(old_prefix.size());
  });
}

void apply_prefix_mapping(Value& state,
                          std::span<const std::pair<std::string, std::string>> prefixes) {
  rename_all(state, [&](const std::string& key) {
    for (const auto& [old_prefix, new_prefix] : prefixes) {
      if (key.starts_with(old_prefix)) return new_prefix + key.substr(old_prefix.size());
    }
    return key;
  });
}

}  // namespace dckpt
