#include "strategies/views/quantized_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/fp8_block.h"
#include "strategies/views/recent_tiles.h"
#include "strategies/views/staging.h"

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
      throw CheckpointError(ErrorCode::kMismatch,
                            "the weight has elements that are infinite or not a number, which "
                            "cannot be quantized",
                            {.key = weight.key});
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

/// A row-major part of the codes or of the scales of a weight.
class QuantizedPart final : public ReadableFile {
 public:
  QuantizedPart(std::string name, Quantizer& quantizer, std::size_t tensor, Box box, bool scales)
      : name_(std::move(name)),
        quantizer_(quantizer),
        tensor_(tensor),
        box_(std::move(box)),
        scales_(scales),
        item_(scales ? sizeof(float) : 1) {}

  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override {
    return static_cast<std::uint64_t>(numel(box_.sizes)) * item_;
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), size()))
      throw CheckpointError(ErrorCode::kCorrupt, "a read goes past the elements of a weight",
                            {.file = name_, .offset = offset});
    const std::uint64_t width = static_cast<std::uint64_t>(box_.sizes[1]) * item_;
    for (std::size_t done = 0; done < into.size();) {
      const auto row = box_.offsets[0] + static_cast<std::int64_t>((offset + done) / width);
      const std::uint64_t begin = (offset + done) % width;
      const std::size_t count = std::min<std::size_t>(into.size() - done, width - begin);
      const auto blocks = quantizer_.blocks(tensor_, scales_ ? row : row / kFp8Block);
      const std::byte* from = reinterpret_cast<const std::byte*>(blocks->scales.data());
      if (!scales_) from = blocks->codes.data() + row % kFp8Block * blocks->columns;
      from += static_cast<std::uint64_t>(box_.offsets[1]) * item_ + begin;
      std::memcpy(into.data() + done, from, count);
      done += count;
    }
  }

 private:
  std::string name_;
  Quantizer& quantizer_;
  std::size_t tensor_;
  Box box_;
  bool scales_;
  std::size_t item_;
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
    Box box = made.chunks[chunk];
    return {.offset = 0,
            .dtype = made.properties.dtype,
            .strides = row_major_strides(box.sizes),
            .decoded = std::make_shared<QuantizedPart>(file.name(), quantizer_, position,
                                                       std::move(box), form == Form::kScales)};
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
