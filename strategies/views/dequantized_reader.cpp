#include "strategies/views/dequantized_reader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/contract/made_chunk.h"
#include "strategies/views/scale_tiles.h"

namespace dckpt {
namespace {

constexpr std::size_t kMostAtOnce = 256;

/// The values of a chunk of a weight, in the order in which the codes are stored.
class DequantizedChunk final : public ChangedChunk {
 public:
  /// `box` is that of the values. The weight and the scales must outlive this.
  DequantizedChunk(const ReadableFile& file, ChunkPayload codes, Box box,
                   const QuantizedWeight& weight, ScaleTiles& scales, DType dtype)
      : ChangedChunk(file, std::move(codes), dtype, std::move(box)),
        weight_(weight),
        scales_(scales) {}

 private:
  void make(std::int64_t start, MutableByteView into) const override {
    // Codes are smaller than their values: they fit at the end of `into`, and the values replace
    // them.
    const std::size_t count = into.size() / item();
    const auto first = static_cast<std::uint64_t>(start);
    const Range range = bytes_of(first, count);
    const MutableByteView codes = into.last(range.length);
    read_stored(range.offset, codes);
    const std::uint64_t skipped = weight_.form != nullptr ? first % 2 : 0;  // of a shared byte
    const std::int64_t width = box().sizes.back();
    for (std::size_t done = 0; done < count;) {
      const auto position = static_cast<std::int64_t>(first + done);
      const std::int64_t begin = position % width;
      const std::size_t in_row = std::min(count - done, static_cast<std::size_t>(width - begin));
      const auto scales = scales_.row(weight_, row_at(position / width));
      std::int64_t column = box().offsets.back() + begin;
      for (const std::size_t end = done + in_row; done < end;) {
        const std::size_t run = std::min(end - done, kMostAtOnce);
        std::array<float, kMostAtOnce> values;
        decode(codes.data(), skipped + done, values.data(), run);
        for (std::size_t i = 0; i < run;) {
          const std::int64_t block = column / weight_.columns;
          const std::int64_t left = (block + 1) * weight_.columns - column;
          const std::size_t next = i + std::min(run - i, static_cast<std::size_t>(left));
          column += static_cast<std::int64_t>(next - i);
          for (; i < next; ++i) values[i] *= scales.get()[block];
        }
        cast(values.data(), into.data() + done * item(), run);
        done += run;
      }
    }
  }

  Range bytes_of(std::uint64_t first, std::uint64_t count) const override {
    if (weight_.form == nullptr) return {first, count};
    return {first / 2, (first + count + 1) / 2 - first / 2};
  }

  /// Returns the index in the tensor of a row of the chunk.
  Shape row_at(std::int64_t row) const {
    Shape index(box().dims() - 1, 0);
    for (std::size_t axis = index.size(); axis-- > 0;) {
      index[axis] = box().offsets[axis] + row % box().sizes[axis];
      row /= box().sizes[axis];
    }
    return index;
  }

  /// Decodes `count` codes from number `first` on.
  void decode(const std::byte* codes, std::uint64_t first, float* values, std::size_t count) const {
    if (weight_.form == nullptr)
      return cast_elements(stored_dtype(), codes + first, DType::kFloat32,
                           reinterpret_cast<std::byte*>(values), count);
    for (std::uint64_t i = first; i < first + count; ++i) {
      const std::byte pair = codes[i / 2];
      *values++ = weight_.form->values[std::to_integer<std::size_t>(
          i % 2 == 0 ? pair & std::byte{0x0F} : pair >> 4)];
    }
  }

  /// Rounds values. `into` may overlap codes that are decoded already.
  void cast(const float* values, std::byte* into, std::size_t count) const {
    const auto* const floats = reinterpret_cast<const std::byte*>(values);
    cast_elements(DType::kFloat32, floats, dtype(), into, count);
    const std::size_t i = first_too_large(DType::kFloat32, floats, dtype(), into, count);
    if (i == count) return;
    throw_error(ErrorCode::kMismatch, {.key = weight_.key, .file = name()},
                "a weight is worth {}, which would be infinite in {}; choose "
                "dequantize=bfloat16 or dequantize=float32",
                values[i], to_string(dtype()));
  }

  const QuantizedWeight& weight_;
  ScaleTiles& scales_;
};

/// A tensor of the source, and what is known of it if it is a weight.
struct Origin {
  std::size_t tensor = 0;
  std::optional<QuantizedWeight> weight{};
};

class DequantizedReader final : public ForwardingReader {
 public:
  DequantizedReader(std::unique_ptr<CheckpointReader> source, const BlockScales& scales)
      : ForwardingReader(std::move(source)),
        dtype_(scales.dtype),
        metadata_(source_->metadata()),
        scales_(*source_) {
    auto weights = quantized_weights(source_->metadata(), scales);
    std::vector<TensorStorageMetadata> stored = std::exchange(metadata_.tensors, {});
    for (std::size_t i = 0; i < stored.size(); ++i) {
      const auto found = weights.find(i);
      if (found != weights.end() && !found->second) continue;
      origins_.push_back({i});
      if (found != weights.end()) {
        stored[i] = dequantized(stored[i], *found->second);
        origins_.back().weight = *std::move(found->second);
      }
      metadata_.tensors.push_back(std::move(stored[i]));
    }
  }

  const Metadata& metadata() const noexcept override { return metadata_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    const auto& [position, weight] = origins_.at(tensor);
    ChunkPayload payload = source_->locate(position, chunk, file);
    if (!weight) return payload;
    if (!payload.contiguous)
      throw_error(ErrorCode::kUnsupported,
                  "weights with scales have to lie row-major; convert the checkpoint "
                  "once without changing its keys");
    Box box = weight->values_of(source_->metadata().tensors[position].chunks[chunk]);
    ChunkPayload values = payload_of(std::make_shared<DequantizedChunk>(
        file, std::move(payload), std::move(box), *weight, scales_, dtype_));
    values.contiguous = !weight->is_transposed();
    if (!values.contiguous) swap_last(values.strides);
    return values;
  }

  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    return source_->check_chunk(origins_.at(tensor).tensor, chunk, file);
  }

  QuantizedKeys keys() const {
    QuantizedKeys keys;
    const auto& stored = source_->metadata().tensors;
    for (const auto& [tensor, weight] : origins_) {
      if (!weight) continue;
      std::vector<std::string>& made_of = keys[weight->key];
      made_of = {stored[tensor].key, stored[weight->scales].key};
      for (const auto& part : {weight->tensor_scale, weight->shape}) {
        if (part) made_of.push_back(stored[*part].key);
      }
    }
    return keys;
  }

 private:
  static void swap_last(Shape& shape) { std::swap(*(shape.end() - 1), *(shape.end() - 2)); }

  /// Returns the metadata of a weight's values.
  TensorStorageMetadata dequantized(const TensorStorageMetadata& codes,
                                    const QuantizedWeight& weight) const {
    TensorStorageMetadata values = codes;
    values.key = weight.key;
    values.properties.dtype = dtype_;
    values.size = weight.size;
    if (weight.is_transposed()) swap_last(values.size);
    values.chunks = BoxList(values.size.size());
    for (std::size_t i = 0; i < codes.chunks.size(); ++i) {
      Box box = weight.values_of(codes.chunks[i]);
      if (weight.is_transposed()) {
        swap_last(box.offsets);
        swap_last(box.sizes);
      }
      values.chunks.push_back(box);
    }
    return values;
  }

  DType dtype_;
  Metadata metadata_;
  std::vector<Origin> origins_;  // same order as its tensors
  mutable ScaleTiles scales_;
};

}  // namespace

std::unique_ptr<CheckpointReader> dequantized_reader(std::unique_ptr<CheckpointReader> source,
                                                     const BlockScales& scales,
                                                     QuantizedKeys* keys) {
  if (scales.rows < 1 || scales.columns < 1)
    throw_error(ErrorCode::kInvalidArgument,
                "weights cannot have a scale for each block of {} × {}", scales.rows,
                scales.columns);
  auto reader = std::make_unique<DequantizedReader>(std::move(source), scales);
  if (keys != nullptr) *keys = reader->keys();
  return reader;
}

}  // namespace dckpt
