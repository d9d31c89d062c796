#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "mapping/planning/load/distribution.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A reader that has learnt from other ranks where the elements of some chunks are, and does not
/// look for them again. Falls back to `base`, which must outlive it.
class LocatedReader final : public CheckpointReader {
 public:
  explicit LocatedReader(const CheckpointReader& base) : base_(base) {}

  using SplitChunk = LoadDistribution::SplitChunk;

  /// Locates the chunks that `rank` reads and returns their positions, for all ranks. Throws
  /// CheckpointError as CheckpointReader::locate does.
  static Bytes look_for(const CheckpointReader& base, std::span<const SplitChunk> chunks,
                        std::uint32_t rank);

  /// `answers[r]` is what rank r has found. Returns the chunks that can only be read as a whole,
  /// because their elements are not row-major or have to be decoded. Throws CheckpointError
  /// (corrupt) for answers that are malformed or lie outside the chunks' places.
  std::vector<ChunkNumber> learn(std::span<const SplitChunk> chunks,
                                 std::span<const Bytes> answers);

  const CheckpointInfo& info() const noexcept override { return base_.info(); }
  const Metadata& metadata() const noexcept override { return base_.metadata(); }
  const Storage& storage() const noexcept override { return base_.storage(); }
  Value common_state() const override { return base_.common_state(); }
  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override;
  Bytes object_bytes(std::size_t object) const override { return base_.object_bytes(object); }
  Value decode_object(std::size_t object, ByteView stored) const override {
    return base_.decode_object(object, stored);
  }
  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    return base_.check_chunk(tensor, chunk, file);
  }
  bool check_object(std::size_t object) const override { return base_.check_object(object); }

 private:
  const CheckpointReader& base_;
  std::vector<ChunkNumber> known_;  ///< ascending
  /// Offsets of their elements, and their records.
  std::vector<std::pair<std::uint64_t, std::optional<RecordedCrc>>> found_;
};

}  // namespace dckpt
