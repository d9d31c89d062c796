#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/planner_options.h"

namespace DCKPT_API dckpt {

/// The part of one tensor that a rank holds, as planning sees it: no data.
struct TensorShard {
  std::string key;
  TensorProperties properties;
  Shape global_shape;
  Box box;  ///< of the local tensor, with prepended axes
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  std::optional<Range> range{};          ///< of the box's row-major elements, when flattened
  std::optional<Shape> fragmentation{};  ///< pieces per axis of a regular grid
  bool main_replica = true;
  std::uint32_t source = 0;  ///< the rank's own number for it
};

/// One object that a rank holds.
struct ObjectShard {
  std::string key;  ///< unique key: as it is stored
  std::uint64_t nbytes = 0;
  bool main_replica = true;
  std::uint32_t source = 0;
  /// For Megatron, the grid of objects to which this one belongs, spread over ranks: the part that
  /// their keys share, the grid's shape, and this object's cell.
  std::string grid_key{};
  Shape grid{};
  Shape cell{};
};

/// One tensor shard or object that a rank holds.
using LocalShard = std::variant<TensorShard, ObjectShard>;

/// One item that a rank writes: a chunk of a tensor, or an object.
struct WriteItem {
  enum class Kind : std::uint8_t { kTensor, kObject };
  Kind kind = Kind::kTensor;
  std::string key;
  bool main_replica = true;
  std::uint32_t source = 0;       ///< `source` of its shard
  std::int64_t source_begin = 0;  ///< first element of the source's row-major elements; the chunk's
                                  ///< are contiguous from there
  std::uint64_t nbytes = 0;       ///< for tensors; for objects only on the rank that holds them
  Shape size{};  ///< stored size of the whole tensor; for an object its grid, if it is in one
  Box chunk{};   ///< in the stored size's space; for an object its cell in the grid
  // Objects only:
  std::string grid_key{};
  // Tensors only:
  TensorProperties properties{};
  std::optional<Shape> flattened_shape{};  ///< the tensor's own shape, when stored reformulated
  bool flattened = false;                  ///< from a flattened range
  /// The shape in which a planner takes the source's elements, if it stores them in another one
  /// (SavePlanner::resolve_tensor).
  std::optional<Shape> source_shape{};

  bool added = false;  ///< by a planner, and not of the state

  /// The number of the source's elements that a tensor item takes.
  std::int64_t source_count() const { return numel(source_shape ? *source_shape : chunk.sizes); }

  friend bool operator==(const WriteItem&, const WriteItem&) = default;
};

using SavePlan = std::vector<WriteItem>;

/// Returns a rank's items, in the order of its shards: replicas and shards without elements are
/// planned too, so that ranks are compared. The global plan decides which items are written.
SavePlan plan_local_save(std::span<const LocalShard> shards, FlattenedForm form);

}  // namespace dckpt
