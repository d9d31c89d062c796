#include "strategies/views/dequantized_reader.h"

#include <optional>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/views/dequantized_chunk.h"

namespace dckpt {
namespace {

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
      throw CheckpointError(ErrorCode::kUnsupported,
                            "weights with scales have to lie row-major; convert the checkpoint "
                            "once without changing its keys");
    Box box = weight->values_of(source_->metadata().tensors[position].chunks[chunk]);
    Shape strides = row_major_strides(box.sizes);
    const bool is_transposed = weight->is_transposed();
    if (is_transposed) swap_last(strides);
    return {.offset = 0,
            .dtype = dtype_,
            .strides = std::move(strides),
            .contiguous = !is_transposed,
            .decoded = std::make_shared<DequantizedChunk>(file, std::move(payload), std::move(box),
                                                          *weight, scales_, dtype_)};
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
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("weights cannot have a scale for each block of {} × {}",
                                     scales.rows, scales.columns));
  auto reader = std::make_unique<DequantizedReader>(std::move(source), scales);
  if (keys != nullptr) *keys = reader->keys();
  return reader;
}

}  // namespace dckpt
