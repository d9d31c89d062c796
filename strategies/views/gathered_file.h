#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "mapping/planning/load/distribution.h"
#include "mapping/planning/rearrange.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Reads chunks whose elements are gathered from several parts of a checkpoint. The memory it takes
/// does not depend on how finely the parts take turns. Safe to use from several threads.
class ChunkGatherer {
 public:
  /// Both arguments must outlive it.
  ChunkGatherer(const CheckpointReader& source, std::span<const GatheredChunk> chunks)
      : source_(source), chunks_(chunks) {}

  /// Returns the row-major elements of a chunk. `file` is the chunk's, and must outlive them;
  /// `dtype` and `key` are those of its tensor.
  std::shared_ptr<const ReadableFile> elements(std::size_t chunk, const ReadableFile& file,
                                               DType dtype, std::string key) const;

  /// Checks everything that has a checksum in all stored chunks that have elements of the chunk,
  /// each of them once. Returns false if any has none.
  bool check(std::size_t chunk) const;

 private:
  class File;

  bool check_stored(const ChunkNumber& number) const;

  const CheckpointReader& source_;
  std::span<const GatheredChunk> chunks_;
  mutable std::mutex mutex_;
  mutable std::map<ChunkNumber, bool> checked_;
};

}  // namespace dckpt
