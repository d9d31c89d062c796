#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "mapping/planning/load/distribution.h"
#include "strategies/contract/forwarding_reader.h"

namespace dckpt {

/// A reader that has learned from other ranks where the elements of some chunks are, and does not
/// look for them again. Falls back to `base`, which must outlive it.
class LocatedReader final : public ForwardingReader {
 public:
  explicit LocatedReader(const CheckpointReader& base) : ForwardingReader(base) {}

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

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override;

 private:
  std::vector<ChunkNumber> known_;  ///< ascending
  /// Offsets of their elements, and their records.
  std::vector<std::pair<std::uint64_t, std::optional<RecordedCrc>>> found_;
};

}  // namespace dckpt
