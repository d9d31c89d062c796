#include "strategies/views/quantized_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/contract/made_chunk.h"
#include "strategies/contract/recent_tiles.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/fp8_block.h"

namespace dckpt {
namespace {

std::int64_t blocks_of(std::int64_t extent) {
  return extent / kFp8Block + (extent % kFp8Block != 0 ? 1 : 0);
}

/// A row of blocks of a weight.
struct Quantized {
  std::int64_t columns = 0;
  Bytes codes{};  // row-major
  std::vector<float> scales{};
};

/// Quantizes weights of a checkpoint, row of blocks by row of blocks.
class Quantizer {
 public:
  explicit Quantizer(const CheckpointReader& source) : source_(source) {}

  std::shared_ptr<const Quantized> blocks(std::size_t tensor, std::int64_t row) {
    return recent_.get({tensor, row}, [&] { return quantize(tensor, row); });
  }

 private:
  Quantized quantize(std::size_t tensor, std::int64_t row) const {
    const TensorStorageMetadata& weight = source_.metadata().tensors[tensor];
    const Shape& shape = weight.global_shape();
    const std::int64_t first = row * kFp8Block;
    const std::int64_t rows = std::min(kFp8Block, shape[0] - first);
    const Tensor stored = read_box(source_, tensor, {{first, 0}, {rows, shape[1]}},
                                   {.threads = 1, .staging = kTileStaging});
    std::vector<float> values(static_cast<std::size_t>(stored.numel()));
    cast_elements(stored.dtype(), stored.data(), DType::kFloat32,
                  reinterpret_cast<std::byte*>(values.data()), values.size());
    if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
      throw_error(ErrorCode::kMismatch, {.key = weight.key},
                  "the weight has elements that are infinite or not a number, which "
                  "cannot be quantized");
    Quantized made{.columns = shape[1], .codes = Bytes(values.size())};
    for (std::int64_t column = 0; column < shape[1]; column += kFp8Block) {
      const Shape sizes{rows, std::min(kFp8Block, shape[1] - column)};
      const StridedView in_weight{column, {shape[1], 1}}, in_block{0, {sizes[1], 1}};
      std::vector<float> block(static_cast<std::size_t>(numel(sizes)));
      Bytes codes(block.size());
      strided_copy(sizes, sizeof(float), reinterpret_cast<const std::byte*>(values.data()),
                   in_weight, reinterpret_cast<std::byte*>(block.data()), in_block);
      made.scales.push_back(quantize_fp8(block, stored.dtype(), codes.data()));
      strided_copy(sizes, 1, codes.data(), in_block, made.codes.data(), in_weight);
    }
    return made;
  }

  const CheckpointReader& source_;
  RecentTiles<std::pair<std::size_t, std::int64_t>, Quantized> recent_{8};
};

/// A part of the codes or of the scales of a weight.
class QuantizedPart final : public MadeChunk {
 public:
  QuantizedPart(const ReadableFile& file, DType dtype, Box box, Quantizer& quantizer,
                std::size_t tensor, bool scales)
      : MadeChunk(file, dtype, std::move(box)),
        quantizer_(quantizer),
        tensor_(tensor),
        scales_(scales) {}

 private:
  void make(std::int64_t first, MutableByteView elements) const override {
    const std::int64_t width = box().sizes[1];
    const std::int64_t end = first + static_cast<std::int64_t>(elements.size() / item());
    for (std::byte* into = elements.data(); first < end;) {
      const std::int64_t row = box().offsets[0] + first / width;
      const std::int64_t column = first % width;
      const std::int64_t count = std::min(end - first, width - column);
      const auto blocks = quantizer_.blocks(tensor_, scales_ ? row : row / kFp8Block);
      const std::byte* from = reinterpret_cast<const std::byte*>(blocks->scales.data());
      if (!scales_) from = blocks->codes.data() + row % kFp8Block * blocks->columns;
      const std::size_t length = static_cast<std::size_t>(count) * item();
      std::memcpy(into, from + static_cast<std::size_t>(box().offsets[1] + column) * item(),
                  length);
      into += length;
      first += count;
    }
  }

  Quantizer& quantizer_;
  std::size_t tensor_;
  bool scales_;
};

class QuantizedReader final : public ForwardingReader {
 public:
  QuantizedReader(std::unique_ptr<CheckpointReader> source, const std::vector<bool>& chosen)
      : ForwardingReader(std::move(source)), metadata_(source_->metadata()), quantizer_(*source_) {
    const std::vector<TensorStorageMetadata> stored = std::exchange(metadata_.tensors, {});
    for (std::size_t i = 0; i < stored.size(); ++i) {
      const bool quantized = chosen.at(i);
      origins_.push_back({i, quantized ? Form::kCodes : Form::kStored});
      metadata_.tensors.push_back(stored[i]);
      if (!quantized) continue;
      metadata_.tensors.back().properties.dtype = DType::kFloat8E4M3FN;
      origins_.push_back({i, Form::kScales});
      metadata_.tensors.push_back(scales_of(stored[i]));
    }
  }

  const Metadata& metadata() const noexcept override { return metadata_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    const auto [position, form] = origins_.at(tensor);
    if (form == Form::kStored) return source_->locate(position, chunk, file);
    const TensorStorageMetadata& made = metadata_.tensors[tensor];
    return payload_of(std::make_shared<QuantizedPart>(file, made.properties.dtype,
                                                      made.chunks[chunk], quantizer_, position,
                                                      form == Form::kScales));
  }

  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    return source_->check_chunk(origins_.at(tensor).tensor, chunk, file);
  }

 private:
  enum class Form : std::uint8_t { kStored, kCodes, kScales };
  struct Origin {
    std::size_t tensor = 0;
    Form form = Form::kStored;
  };

  /// Returns the metadata of a weight's scales, with the place of one of its chunks.
  static TensorStorageMetadata scales_of(const TensorStorageMetadata& weight) {
    const Shape& shape = weight.global_shape();
    TensorStorageMetadata scales{.key = weight.key + kFp8Scales,
                                 .properties = {.dtype = DType::kFloat32},
                                 .size = {blocks_of(shape[0]), blocks_of(shape[1])},
                                 .chunks = BoxList(2),
                                 .places = {weight.places.front()},
                                 .order = weight.order};
    scales.chunks.push_back(whole(scales.size));
    return scales;
  }

  Metadata metadata_;
  std::vector<Origin> origins_;  // same order as its tensors
  mutable Quantizer quantizer_;
};

}  // namespace

bool can_quantize(const TensorStorageMetadata& tensor) {
  const DType dtype = tensor.properties.dtype;
  return tensor.size.size() == 2 && !tensor.flattened_shape && numel(tensor.size) > 0 &&
         (dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16);
}

std::unique_ptr<CheckpointReader> quantized_reader(std::unique_ptr<CheckpointReader> source,
                                                   const std::vector<bool>& chosen) {
  return std::make_unique<QuantizedReader>(std::move(source), chosen);
}

}  // namespace dckpt
