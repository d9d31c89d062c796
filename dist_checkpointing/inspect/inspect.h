#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/key_filter.h"
#include "mapping/base/api.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// A stored piece of a tensor: its box in the stored tensor, and the file range of its bytes.
struct ChunkSummary {
  Box box;
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

struct TensorSummary {
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;              ///< of the whole tensor
  std::uint64_t bytes = 0;  ///< of its elements
  std::size_t chunk_count = 0;
  bool flattened = false;  ///< stored as flattened ranges, reformulated as Megatron does; chunk
                           ///< boxes are in `stored_shape`
  Shape stored_shape;
  std::vector<ChunkSummary> chunks;  ///< filled if InspectOptions::chunks
};

struct ObjectSummary {
  std::string key;
  std::uint64_t bytes = 0;  ///< as stored
};

struct FileSummary {
  std::string name;  ///< relative to the checkpoint
  std::uint64_t bytes = 0;
  /// Bytes of a data file that belong to no record: removed keys, padding. For formats whose data
  /// files are sequences of records (torch_dist, dcp).
  std::optional<std::uint64_t> unused{};
};

/// Count and bytes of one kind of content.
struct GroupTotal {
  std::size_t count = 0;
  std::uint64_t elements = 0;  ///< of tensors
  std::uint64_t bytes = 0;
};

struct CheckpointSummary {
  CheckpointInfo info;
  std::vector<TensorSummary> tensors;
  std::vector<ObjectSummary> objects;
  /// Every regular file below the checkpoint, even if it does not belong to it.
  std::vector<FileSummary> files;
  Value common;          ///< none if the format has no common state
  GroupTotal weights;    ///< tensors that are not optimizer state
  GroupTotal optimizer;  ///< tensors with an optimizer key (is_optimizer_key)
  GroupTotal object_total;
  bool has_optimizer = false;  ///< any key is an optimizer key, selected or not
  /// Which releases load the model and resume the optimizer (describe_readers).
  std::vector<std::string> readers;
};

struct InspectOptions {
  KeyFilter keys{};  ///< selects tensors and objects; totals count only these
  bool chunks = false;
};

/// The contents of a checkpoint, from its metadata and its directory; reads no tensor. Throws
/// CheckpointError if the common state or the directory cannot be read.
CheckpointSummary inspect(const CheckpointReader& reader, const InspectOptions& options = {});

/// Whether a tensor belongs to the optimizer, according to Megatron's and FSDP's names:
/// "optimizer.…", "chained_0.optimizer.…", "optim.…", "mp_rank_00/distrib_optim.…".
bool is_optimizer_key(std::string_view key);

/// One line of a key tree: a key component at some depth, with the totals of the tensors below it.
struct KeyTreeRow {
  std::size_t depth = 0;
  std::string name;
  GroupTotal total;
  std::size_t leaf =
      kNoLeaf;  ///< position in `tensors` of the tensor with exactly this key, if any
  static constexpr std::size_t kNoLeaf = static_cast<std::size_t>(-1);
};

/// The tensors' keys as a tree, split at dots, parents before their children, numbers in numerical
/// order. Components deeper than kMaxKeyTreeDepth are not split.
inline constexpr std::size_t kMaxKeyTreeDepth = 32;
std::vector<KeyTreeRow> key_tree(const std::vector<TensorSummary>& tensors);

}  // namespace dckpt
