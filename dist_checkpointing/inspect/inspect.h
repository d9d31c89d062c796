#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/key_filter.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A stored piece of a tensor: the box it fills in the tensor as stored, and the file range its
/// bytes come from.
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
  bool flattened = false;  ///< stored as flattened ranges, reformulated the Megatron way; boxes of
                           ///< chunks are in `stored_shape`
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
  /// Bytes of a data file that no record takes: removed keys, padding. For formats whose data files
  /// are records one after the other (torch_dist, dcp).
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
  /// Every regular file below the checkpoint, whether or not it belongs to it.
  std::vector<FileSummary> files;
  Value common;          ///< none if the format has no common state
  GroupTotal weights;    ///< tensors that are not optimizer state
  GroupTotal optimizer;  ///< tensors whose key says that they are (is_optimizer_key)
  GroupTotal object_total;
  bool has_optimizer = false;  ///< any key says that it is optimizer state, chosen or not
  /// Who loads the model and who resumes the optimizer: describe_readers.
  std::vector<std::string> readers;
};

struct InspectOptions {
  KeyFilter keys{};  ///< which tensors and objects; totals count these only
  bool chunks = false;
};

/// What a checkpoint holds, from its metadata and its directory; reads no tensor. Throws
/// CheckpointError if the common state or the directory cannot be read.
CheckpointSummary inspect(const CheckpointReader& reader, const InspectOptions& options = {});

/// Whether a tensor belongs to the optimizer, by the names that Megatron and FSDP give:
/// "optimizer.…", "chained_0.optimizer.…", "optim.…", "mp_rank_00/distrib_optim.…".
bool is_optimizer_key(std::string_view key);

/// One line of a key tree: a component of the keys at some depth, with the totals of the tensors
/// below.
struct KeyTreeRow {
  std::size_t depth = 0;
  std::string name;
  GroupTotal total;
  std::size_t leaf = kNoLeaf;  ///< position in `tensors` if a tensor has exactly this key
  static constexpr std::size_t kNoLeaf = static_cast<std::size_t>(-1);
};

/// The tensors' keys as a tree, cut at dots, parents before their children, numbers in numerical
/// order. Components deeper than kMaxKeyTreeDepth stay joined.
inline constexpr std::size_t kMaxKeyTreeDepth = 32;
std::vector<KeyTreeRow> key_tree(const std::vector<TensorSummary>& tensors);

}  // namespace dckpt
