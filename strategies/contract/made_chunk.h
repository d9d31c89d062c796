#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "mapping/geometry/box.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Bytes of staging memory of each read that a view makes: of a few rows, or of a tile.
constexpr std::uint64_t kRowStaging = std::uint64_t{256} << 10;
constexpr std::uint64_t kTileStaging = std::uint64_t{1} << 20;

/// The elements of a chunk, row-major unless a derived class says otherwise, which a view makes
/// when they are read.
class MadeChunk : public ReadableFile {
 public:
  /// `file` is the chunk's, and must outlive this; `box` is its place in its tensor.
  MadeChunk(const ReadableFile& file, DType dtype, Box box)
      : file_(file), box_(std::move(box)), dtype_(dtype) {}

  const std::string& name() const noexcept override { return file_.name(); }
  std::uint64_t size() const noexcept override {
    return static_cast<std::uint64_t>(numel(box_.sizes)) * item();
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}
  void read(std::uint64_t offset, MutableByteView into) const override;

  const Box& box() const noexcept { return box_; }
  DType dtype() const noexcept { return dtype_; }
  std::size_t item() const noexcept { return item_size(dtype_); }

 protected:
  /// Makes consecutive elements, at least one; the first of them is element `first` of the chunk.
  virtual void make(std::int64_t first, MutableByteView elements) const = 0;

  const ReadableFile& file_;

 private:
  Box box_;
  DType dtype_;
};

/// Elements that are made of the stored ones, which take the same places.
class ChangedChunk : public MadeChunk {
 public:
  /// The stored elements are in `stored.decoded`, or else in `file`.
  ChangedChunk(const ReadableFile& file, ChunkPayload stored, DType dtype, Box box)
      : MadeChunk(file, dtype, std::move(box)), stored_(std::move(stored)) {}

  void prefetch(std::uint64_t offset, std::uint64_t length) const override;

 protected:
  /// A number of bytes from an offset on, counted from the first stored element.
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };
  /// Returns the bytes of which `count` elements are made.
  virtual Range bytes_of(std::uint64_t first, std::uint64_t count) const;
  /// Reads them; `into` has their number.
  void read_stored(std::uint64_t offset, MutableByteView into) const;
  DType stored_dtype() const noexcept { return stored_.dtype; }

 private:
  const ReadableFile& elements() const { return stored_.decoded ? *stored_.decoded : file_; }

  ChunkPayload stored_;
};

/// Returns the payload of a chunk whose elements are made row-major.
ChunkPayload payload_of(std::shared_ptr<const MadeChunk> made);

/// Throws CheckpointError (unsupported) unless the elements of a chunk lie row-major.
void require_row_major(const ChunkPayload& payload, const std::string& key);

}  // namespace dckpt
