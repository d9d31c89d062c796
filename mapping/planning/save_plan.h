#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// What a rank holds of one tensor, as planning sees it: no data.
struct TensorShard {
  std::string key;
  TensorProperties properties;
  Shape global_shape;
  Box box;                               ///< of the local tensor, with prepended axes
  struct Range { std::int64_t begin = 0; std::int64_t end = 0; };
  std::optional<Range> range{};          ///< of the box's row-major elements, when flattened
  std::optional<Shape> fragmentation{};  ///< pieces per axis of a regular grid
  bool main_replica = true;
  std::uint32_t source = 0;              ///< the rank's own number for it
};

/// What a rank holds of one object.
struct ObjectShard {
  std::string key;                       ///< unique key
  std::uint64_t nbytes = 0;
  bool main_replica = true;
  std::uint32_t source = 0;
};

/// How flattened ranges are stored.
enum class FlattenedForm : std::uint8_t {
  kBoxes,     ///< as boxes of the tensor's own space: ordinary tensors for every reader
  kMegatron,  ///< as Megatron 0.8–0.15 do (see reformulation.h): what those versions load
};

/// One thing a rank writes: a chunk of a tensor, or an object.
struct WriteItem {
  enum class Kind : std::uint8_t { kTensor, kObject };
  Kind kind = Kind::kTensor;
  std::string key;
  std::uint32_t source = 0;                ///< of the shard it comes from
  std::int64_t source_begin = 0;           ///< first element of the source's row-major elements; the chunk's are contiguous from there
  std::uint64_t nbytes = 0;
  // Tensors only:
  TensorProperties properties{};
  Shape size{};                            ///< stored size of the whole tensor
  Box chunk{};                             ///< in the stored size's space
  std::optional<Shape> flattened_shape{};  ///< the tensor's own shape, when stored reformulated

  friend bool operator==(const WriteItem&, const WriteItem&) = default;
};

using SavePlan = std::vector<WriteItem>;

/// A rank's items. Only main replicas when `only_main_replicas` (Megatron), else all (DCP: duplicates go in the global plan).
/// Empty shards give no items, except that a tensor without elements keeps one empty chunk.
SavePlan plan_local_save(std::span<const TensorShard> tensors, std::span<const ObjectShard> objects, FlattenedForm form, bool only_main_replicas);

struct GlobalPlan {
  /// Per rank, positions in its local plan of what it is to write.
  std::vector<std::vector<std::uint32_t>> items;
  /// Everything that will be stored, in the order of ranks, then of their items. Places are zero until set_places.
  Metadata metadata;
  /// Per rank, beside `items`: which entry of the metadata an item is.
  struct Slot {
    std::uint32_t entry = 0;  ///< position in tensors or objects
    std::uint32_t chunk = 0;  ///< of a tensor
    bool is_object = false;
  };
  std::vector<std::vector<Slot>> slots;
};

struct GlobalPlanOptions {
  /// What happens to a chunk or object that several ranks plan: one of them writes it (the least loaded so far, or the lowest), or it is an error
  /// (Megatron's rule for main replicas).
  enum class Duplicates : std::uint8_t { kBalanced, kLowestRank, kError };
  Duplicates duplicates = Duplicates::kBalanced;
  bool validate = true;  ///< that the chunks of each tensor cover it exactly
};

/// Decides who writes what, and makes the metadata. Throws CheckpointError (mismatch) with every key on which ranks disagree (dtype, size, original
/// shape, tensor here and object there), every forbidden duplicate, and every tensor whose chunks overlap or leave holes.
GlobalPlan plan_global_save(std::span<const SavePlan> plans, const GlobalPlanOptions& options = {});

/// Fills in where a rank wrote its items: `places` in the order of `items` of that rank, file numbers relative to `files`.
void set_places(GlobalPlan& plan, std::span<const std::vector<Place>> places, std::span<const std::vector<std::string>> files);

/// A local plan as bytes, for the wire: versioned, little-endian. `decode_plan` throws CheckpointError (corrupt) on anything that
/// `encode_plan` does not produce; never allocates more than a small multiple of the bytes it was given.
Bytes encode_plan(const SavePlan& plan);
SavePlan decode_plan(ByteView bytes);

}  // namespace dckpt
