#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "mapping/planning/metadata.h"

namespace dckpt::dcp {

/// Assigns the chunks of one tensor their places. A storage record identifies its chunk by the
/// chunk's offsets; its index is a hint that may be absent or wrong. Records mostly come in the
/// order of the chunks or have correct hints; the others are found by a binary search. Linear,
/// except for one sort when that is needed.
class ChunkMatcher {
 public:
  /// Fills `tensor.places`; the tensor must not move.
  explicit ChunkMatcher(TensorStorageMetadata& tensor);

  /// Throws CheckpointError (corrupt) if no chunk has these offsets, or if all chunks that have
  /// them already have a place.
  void add(ShapeView offsets, std::optional<std::int64_t> hint, const StorageInfo& place);

  /// Throws CheckpointError (corrupt) for a chunk without a place. Chunks with the same offsets
  /// (all but one of them are empty, or they overlap) share one record, because Python's readers
  /// look records up by offsets.
  void finish();

 private:
  bool is_free(std::size_t chunk) const noexcept { return tensor_->places[chunk].file == kNowhere; }
  bool take(std::size_t chunk, ShapeView offsets, const StorageInfo& place);
  void prefetch(std::size_t chunk) const noexcept;
  std::uint64_t position(ShapeView offsets) const noexcept;
  bool same(std::uint32_t chunk, ShapeView offsets) const noexcept {
    return equal(tensor_->chunks.offsets(chunk), offsets);
  }
  void sort();

  static constexpr std::uint32_t kNowhere = UINT32_MAX;

  struct Slot {
    std::uint64_t position;
    std::uint32_t chunk;
  };

  TensorStorageMetadata* tensor_;
  std::size_t next_ = 0;  // the chunk after the one found last
  std::size_t placed_ = 0;
  Shape strides_;
  std::vector<Slot> order_;  // chunks by position, then by offsets; filled when needed
};

}  // namespace dckpt::dcp
