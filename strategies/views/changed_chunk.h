#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mapping/geometry/box.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The elements of a chunk, row-major, of which a view shows others of the same dtype.
class ChangedChunk : public ReadableFile {
 public:
  /// The elements of `box` are in `payload.decoded`, or else in `file`, which must outlive this.
  ChangedChunk(const ReadableFile& file, ChunkPayload payload, Box box)
      : box_(std::move(box)), file_(file), stored_(std::move(payload)) {}

  const std::string& name() const noexcept override { return file_.name(); }
  std::uint64_t size() const noexcept override;
  void prefetch(std::uint64_t offset, std::uint64_t length) const override;
  void read(std::uint64_t offset, MutableByteView into) const override;

 protected:
  /// Changes consecutive elements, at least one; the first of them is element `first` of the chunk.
  virtual void change(std::int64_t first, MutableByteView elements) const = 0;

  DType dtype() const noexcept { return stored_.dtype; }
  std::size_t item() const noexcept { return item_size(stored_.dtype); }

  Box box_;  ///< place of the chunk in its tensor

 private:
  const ReadableFile& elements() const { return stored_.decoded ? *stored_.decoded : file_; }

  const ReadableFile& file_;
  ChunkPayload stored_;
};

/// Returns the payload of a chunk that `decoded` shows.
ChunkPayload payload_of(std::shared_ptr<const ChangedChunk> decoded, DType dtype, const Box& box);

/// Throws CheckpointError (unsupported) unless the elements of a chunk lie row-major.
void require_row_major(const ChunkPayload& payload, const std::string& key);

}  // namespace dckpt
