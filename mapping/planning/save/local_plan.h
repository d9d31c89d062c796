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

/// What a rank holds of one tensor, as planning sees it: no data.
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

/// What a rank holds of one object.
struct ObjectShard {
  std::string key;  ///< unique key: as it is stored
  std::uint64_t nbytes = 0;
  bool main_replica = true;
  std::uint32_t source = 0;
  /// Megatron: the grid of objects that this is one of, each on some rank, what they have in common
  /// of their keys, and its cell.
  std::string grid_key{};
  Shape grid{};
  Shape cell{};
};

/// One entry of what a rank holds.
using LocalShard = std::variant<TensorShard, ObjectShard>;

/// One thing a rank writes: a chunk of a tensor, or an object.
struct WriteItem {
  enum class Kind : std::uint8_t { kTensor, kObject };
  Kind kind = Kind::kTensor;
  std::string key;
  bool main_replica = true;
  std::uint32_t source = 0;       ///< of the shard it comes from
  std::int64_t source_begin = 0;  ///< first element of the source's row-major elements; the chunk's
                                  ///< are contiguous from there
  std::uint64_t nbytes = 0;       ///< of tensors; of objects only on the rank that holds them
  Shape size{};  ///< stored size of the whole tensor; of an object the grid, if it is in one
  Box chunk{};   ///< in the stored size's space; of an object its cell in the grid
  // Objects only:
  std::string grid_key{};
  // Tensors only:
  TensorProperties properties{};
  std::optional<Shape> flattened_shape{};  ///< the tensor's own shape, when stored reformulated
  bool flattened = false;                  ///< from a flattened range

  friend bool operator==(const WriteItem&, const WriteItem&) = default;
};

using SavePlan = std::vector<WriteItem>;

/// A rank's items, in the order of its shards: replicas and shards without elements are planned
/// too, so that ranks are compared. The global plan decides what is written.
SavePlan plan_local_save(std::span<const LocalShard> shards, FlattenedForm form);

}  // namespace dckpt
