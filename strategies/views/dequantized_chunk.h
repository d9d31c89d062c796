#pragma once

#include <cstdint>
#include <utility>

#include "strategies/views/scale_tiles.h"

namespace dckpt {

/// The values of a chunk of a weight, in the order in which the codes are stored.
class DequantizedChunk final : public ReadableFile {
 public:
  /// The codes are in `payload.decoded`, or else in `file`. `box` is that of the values. The weight
  /// and the scales must outlive this.
  DequantizedChunk(const ReadableFile& file, ChunkPayload payload, Box box,
                   const QuantizedWeight& weight, ScaleTiles& scales, DType dtype)
      : file_(file),
        codes_(std::move(payload)),
        box_(std::move(box)),
        weight_(weight),
        scales_(scales),
        dtype_(dtype) {}

  const std::string& name() const noexcept override { return file_.name(); }
  std::uint64_t size() const noexcept override;
  void prefetch(std::uint64_t offset, std::uint64_t length) const override;
  void read(std::uint64_t offset, MutableByteView into) const override;

 private:
  /// A number of bytes from an offset in the file of codes on.
  struct Range {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };
  Range bytes_of(std::uint64_t first, std::uint64_t count) const;
  const ReadableFile& stored() const { return codes_.decoded ? *codes_.decoded : file_; }
  Shape row_at(std::int64_t row) const;
  void decode(const std::byte* codes, std::uint64_t first, float* values, std::size_t count) const;
  void cast(const float* values, std::byte* into, std::size_t count) const;

  const ReadableFile& file_;
  ChunkPayload codes_;
  Box box_;
  const QuantizedWeight& weight_;
  ScaleTiles& scales_;
  DType dtype_;
};

}  // namespace dckpt
