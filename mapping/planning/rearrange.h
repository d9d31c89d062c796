#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/geometry/box.h"
#include "mapping/geometry/strided_copy.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/metadata.h"

// Tensors that are made of parts of stored ones: renamed, stacked, cut, transposed, padded, with
// rows in another order. Nothing is copied: every part becomes chunks inside the stored chunks, so
// that these tensors are read like any others, in any sharding, and only the requested bytes are
// read. Parts that alternate, such as rows of two halves, become one chunk, which gathers its
// elements when it is read.

namespace dckpt {

/// A box of a new tensor, and the source of its elements.
struct TensorPart {
  enum class Elements : std::uint8_t {
    kByAxis,   ///< axis by axis, as `axes` says
    kInOrder,  ///< both boxes in row-major order, whatever their shapes
    kZeros,    ///< no source; the elements are zero
  };
  Elements elements = Elements::kByAxis;
  Box target;                ///< in the new tensor's shape
  std::uint32_t tensor = 0;  ///< position in the source's metadata
  Box source{};              ///< in the global shape of the source; it has as many elements as the
                             ///< target
  /// The source's axis for each of the target's; kNoAxis where it has none (the target's extent is
  /// 1). Extents of source axes that are not named are 1. Empty: all axes, in the same order.
  std::vector<std::int32_t> axes{};
  /// The distance on each axis from an entry of the box to the next one: 2 for every second row.
  /// The sizes of the box count entries. Empty: they are adjacent. Only for kByAxis.
  Shape target_steps{};
  Shape source_steps{};
};
inline constexpr std::int32_t kNoAxis = -1;

/// A tensor made of parts, which must cover it exactly.
struct RearrangedTensor {
  std::string key;
  TensorProperties properties;  ///< the dtype is that of all its parts
  Shape size;
  std::vector<TensorPart> parts;
};

/// The place of the elements of a chunk in a stored one.
struct ChunkOrigin {
  std::uint32_t tensor = kNothing;  ///< position in the source's metadata
  std::uint32_t chunk = 0;
  StridedView elements;  ///< among the stored chunk's row-major elements

  static constexpr std::uint32_t kNothing = UINT32_MAX;       ///< all elements are zero
  static constexpr std::uint32_t kGathered = UINT32_MAX - 1;  ///< `chunk` is the number of a
                                                              ///< GatheredChunk
};

/// A chunk of a new tensor that consists of several alternating parts.
struct GatheredChunk {
  Box box;                        ///< in the new tensor
  std::vector<TensorPart> parts;  ///< they cover it exactly
};

/// Returns the reads for the row-major elements [begin, end) of a chunk: the targets are relative
/// to `begin`, and the destinations 0.
std::vector<ReadItem> plan_gathering(const Metadata& source, const GatheredChunk& chunk,
                                     std::int64_t begin, std::int64_t end);

/// Metadata whose chunks are located in the chunks of others.
struct RearrangedMetadata {
  /// `places` are those of the stored chunks; a gathered chunk has its place in the first of them.
  /// Chunks of zeros are in kZerosFile, which is listed only if there are any.
  Metadata metadata;
  std::vector<std::vector<ChunkOrigin>> origins;  ///< for each chunk of each tensor
  std::vector<GatheredChunk> gathered;
};

/// The names of files for content of a rearranged checkpoint that is in no file.
inline constexpr const char* kZerosFile = "(zeros)";
inline constexpr std::uint64_t kZerosBytes = std::uint64_t{64} << 10;
inline constexpr const char* kMadeFile = "(made)";      ///< objects
inline constexpr const char* kJoinedFile = "(joined)";  ///< prefix of the names of several
inline bool is_stored_file(std::string_view name) noexcept {
  return name != kZerosFile && name != kMadeFile && !name.starts_with(kJoinedFile);
}

/// Makes tensors only: objects and paths of the result are empty. Throws CheckpointError (mismatch)
/// for parts that do not fit their tensors, do not cover theirs exactly, or have another dtype:
/// they come from a map or from numbers that do not belong to the checkpoint, and the message says
/// which.
RearrangedMetadata rearrange(const Metadata& source, std::vector<RearrangedTensor> tensors);

}  // namespace dckpt
