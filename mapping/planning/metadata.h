#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/base/fields.h"
#include "mapping/base/key_path.h"
#include "mapping/geometry/box.h"
#include "mapping/geometry/dtype.h"

namespace DCKPT_API dckpt {

/// DCP's TensorProperties. Only the dtype matters for reading; the rest is preserved.
struct TensorProperties {
  enum class MemoryFormat : std::uint8_t { kContiguous = 0, kChannelsLast = 1, kPreserve = 2 };
  DType dtype = DType::kFloat32;
  bool requires_grad = false;
  MemoryFormat memory_format = MemoryFormat::kContiguous;
  bool pin_memory = false;
  friend bool operator==(const TensorProperties&, const TensorProperties&) = default;
};

/// The encoding of stored bytes.
enum class StorageCodec : std::uint8_t {
  kPlain,
  kZstd,  ///< one zstd frame: DCP's stream extension "stream.zstd/1"
};

/// The place of the bytes of a chunk or object. Their content (a torch archive, raw elements) is up
/// to the strategy.
struct StorageInfo {
  std::uint32_t file = 0;  ///< index into Metadata::files
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  ///< as stored, not as decoded
  StorageCodec codec = StorageCodec::kPlain;
  /// Identifies the bytes that the save put there (docs/formats/dcp_metadata.md); 0: unknown.
  std::uint32_t crc = 0;
  friend bool operator==(const StorageInfo&, const StorageInfo&) = default;
};
constexpr StorageCodec last_of(StorageCodec) {
  return StorageCodec::kZstd;
}
constexpr auto fields(const StorageInfo*) {
  using S = StorageInfo;
  return std::tuple(Field(&S::file), Field(&S::offset), Field(&S::length), Field(&S::codec),
                    Field(&S::crc));
}

/// One stored tensor. Invariants of metadata that a reader returns: dtype known, every extent ≥ 0,
/// each chunk inside `size`, places.size() == chunks.size().
struct TensorStorageMetadata {
  std::string key;
  TensorProperties properties;
  Shape size;  ///< as stored: for a reformulated flattened tensor, the fragments per axis and then
               ///< the elements per fragment
  BoxList chunks;                   ///< in `size`'s space
  std::vector<StorageInfo> places;  ///< places of the chunks, in their order; empty while planning
  /// Megatron's nd_reformulated_orig_global_shape: present for tensors saved as reformulated
  /// flattened ranges.
  std::optional<Shape> flattened_shape{};
  std::uint32_t order = 0;  ///< see Metadata

  /// The tensor's own shape: flattened_shape where present, else size.
  const Shape& global_shape() const noexcept { return flattened_shape ? *flattened_shape : size; }
  std::uint64_t nbytes() const noexcept {
    return static_cast<std::uint64_t>(numel(global_shape())) * item_size(properties.dtype);
  }
};

struct BytesStorageMetadata {
  std::string key;
  StorageInfo place;
  std::uint32_t order = UINT32_MAX;  ///< see Metadata
};

/// DCP's StorageMeta, without its load_id; an entry of its modules names the planner.
struct StorageMeta {
  std::optional<std::string> checkpoint_id{};
  std::optional<std::string> save_id{};
  /// The registered load planner without which what is stored cannot be read as what was saved
  /// (SavePlannerEntry::read_by).
  std::optional<std::string> load_planner{};
};

/// The contents of a checkpoint, without the common state. Tensors and objects keep the order of
/// the file. Formats that store both in one sequence merge them by `order`, the smaller one first;
/// without it, tensors come first.
struct Metadata {
  std::vector<TensorStorageMetadata> tensors;
  std::vector<BytesStorageMetadata> objects;
  std::vector<std::string> files;  ///< data files, relative to the checkpoint
  /// DCP's planner_data: key → path in the nested state dict that was saved. Empty when there is
  /// none.
  std::vector<std::pair<std::string, KeyPath>> paths;
  std::vector<std::string> stray_paths{};  ///< keys of planner_data for which nothing is stored
  /// Values of the common state: key → path in it. In a DCP directory, objects have these keys:
  /// they are copies for programs that look for values under their paths, and readers leave them
  /// out. Elsewhere they are objects that a conversion from plain DCP has moved into the common
  /// state, and that a conversion back restores.
  std::vector<std::pair<std::string, KeyPath>> common_paths{};
  std::optional<StorageMeta> storage_meta{};
  std::optional<std::string> version{};  ///< version of DCP's metadata (torch ≥ 2.9)
  bool has_mcore_data = false;  ///< Megatron 0.8–0.15 attached its attribute (flattened_shape of
                                ///< some tensors may be set)

  /// Identifies the common.pt of the save, as StorageInfo::crc does a record; 0: unknown.
  std::uint32_t common_crc = 0;

  /// Linear; build an index for many lookups.
  const TensorStorageMetadata* find_tensor(std::string_view key) const;
  const BytesStorageMetadata* find_object(std::string_view key) const;
};

}  // namespace dckpt
