#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "mapping/base/api.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// One cell of a grid of arbitrary values, stored as bytes under its unique key.
struct ShardedObject {
  std::string key;
  Value data{};  ///< none if only its shape is known; see `has_data`
  Shape global_shape = {1};
  Shape global_offset = {0};
  ReplicaId replica_id{};
  bool has_data = true;

  /// Returns "key/shard_0.3_1.8".
  std::string unique_key() const;
  /// Parses a unique key, without data; the key may contain slashes. If Megatron before 0.8 cut off
  /// the last extent of the shape, it becomes -1 (unknown). Throws CheckpointError (corrupt) if the
  /// text is not a unique key.
  static ShardedObject from_unique_key(std::string_view unique_key, ReplicaId replica_id = {});
  /// Does the same, but returns nothing instead of throwing.
  [[nodiscard]] static std::optional<ShardedObject> parse_unique_key(std::string_view unique_key);
  static bool is_unique_key(std::string_view key) { return parse_unique_key(key).has_value(); }
  /// Throws CheckpointError (invalid argument) if the offset is outside the grid.
  void validate() const;
};

std::string to_string(const ShardedObject& object);

/// One tensor in memory that is stored as several (or different) tensors. `build` is called before
/// a save and before a load; `merge` is called after a load, with the tree that `build` made and
/// its sharded leaves replaced by loaded values.
struct ShardedTensorFactory {
  using Build =
      std::function<Value(const std::string& key, const Tensor& data, const ReplicaId& replica_id,
                          std::optional<FlattenedRange> range)>;
  using Merge = std::function<Value(const Value& loaded)>;
  std::string key;
  Tensor data{};
  Build build{};
  Merge merge{};
  ReplicaId replica_id{};
  std::optional<FlattenedRange> flattened_range{};
};

/// A value that is not saved and that keeps its place in the tree when it is loaded.
struct LocalNonpersistentObject {
  Value value{};
};

}  // namespace dckpt
