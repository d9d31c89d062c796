#include "strategies/views/converted_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/contract/made_chunk.h"

namespace dckpt {
namespace {

/// Returns the bits of a significand, including the hidden one, and of the exponent; empty for
/// dtypes that a map does not convert.
std::optional<std::pair<int, int>> precision(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return std::pair(11, 5);
    case DType::kBFloat16: return std::pair(8, 8);
    case DType::kFloat32: return std::pair(24, 8);
    case DType::kFloat64: return std::pair(53, 11);
    default: return std::nullopt;
  }
}

/// The elements of a stored chunk, converted, in the order in which they are stored.
class ConvertedChunk final : public ChangedChunk {
 public:
  /// `count` is the number of elements from the first to the last.
  ConvertedChunk(const ReadableFile& file, ChunkPayload payload, Box box, std::uint64_t count,
                 ElementConversion conversion, std::string key)
      : ChangedChunk(file, std::move(payload), conversion.dtype, std::move(box)),
        count_(count),
        conversion_(conversion),
        key_(std::move(key)) {}

  std::uint64_t size() const noexcept override { return count_ * item(); }

 private:
  static constexpr std::size_t kMostAtOnce = 16 << 10;

  void make(std::int64_t first, MutableByteView elements) const override {
    const std::size_t from = item_size(stored_dtype());
    Bytes piece(std::min(elements.size() / item(), kMostAtOnce) * from);
    for (std::size_t done = 0; done < elements.size() / item();) {
      const std::size_t count = std::min(elements.size() / item() - done, kMostAtOnce);
      read_stored((static_cast<std::uint64_t>(first) + done) * from,
                  MutableByteView(piece).first(count * from));
      convert(piece.data(), elements.data() + done * item(), count);
      done += count;
    }
  }

  void convert(const std::byte* from, std::byte* to, std::size_t count) const {
    if (conversion_.add == 0) {
      cast_elements(stored_dtype(), from, conversion_.dtype, to, count);
      return require_finite(from, to, count);
    }
    std::vector<float> values(count);
    auto* const floats = reinterpret_cast<std::byte*>(values.data());
    cast_elements(stored_dtype(), from, DType::kFloat32, floats, count);
    for (float& value : values) value += conversion_.add;
    cast_elements(DType::kFloat32, floats, conversion_.dtype, to, count);
    require_finite(from, to, count);
    if (conversion_.rounded) return;
    cast_elements(conversion_.dtype, to, DType::kFloat32, floats, count);
    for (float& value : values) value -= conversion_.add;
    const std::size_t item = item_size(stored_dtype());
    Bytes back(count * item);
    cast_elements(DType::kFloat32, floats, stored_dtype(), back.data(), count);
    for (std::size_t i = 0; i < count; ++i) {
      if (std::memcmp(back.data() + i * item, from + i * item, item) == 0) continue;
      throw_error(ErrorCode::kMismatch, {.key = key_, .file = name()},
                  "the map adds {} to {}, but {} would come back as {} from {}; let the map "
                  "cast to a type with more digits, or say 'rounded: true'",
                  conversion_.add, to_string(stored_dtype()),
                  load_float(stored_dtype(), from + i * item),
                  load_float(stored_dtype(), back.data() + i * item), to_string(conversion_.dtype));
    }
  }

  void require_finite(const std::byte* from, const std::byte* to, std::size_t count) const {
    if (comes_back(stored_dtype(), conversion_.dtype) && conversion_.add == 0) return;
    const std::size_t i = first_too_large(stored_dtype(), from, conversion_.dtype, to, count);
    if (i == count) return;
    throw_error(ErrorCode::kMismatch, {.key = key_, .file = name()},
                "{} (of {}) would be infinite in {}; choose a type with a wider range",
                load_float(stored_dtype(), from + i * item_size(stored_dtype())),
                to_string(stored_dtype()), to_string(conversion_.dtype));
  }

  std::uint64_t count_;
  ElementConversion conversion_;
  std::string key_;
};

class ConvertedReader final : public ForwardingReader {
 public:
  ConvertedReader(std::unique_ptr<CheckpointReader> source,
                  std::map<std::uint32_t, ElementConversion> conversions)
      : ForwardingReader(std::move(source)),
        conversions_(std::move(conversions)),
        metadata_(source_->metadata()) {
    for (const auto& [position, conversion] : conversions_) {
      TensorStorageMetadata& tensor = metadata_.tensors.at(position);
      DType& dtype = tensor.properties.dtype;
      if (!is_convertible(dtype) || !is_convertible(conversion.dtype))
        throw_error(ErrorCode::kMismatch, {.key = tensor.key},
                    "the map converts {} to {}; it can float32, float16, "
                    "bfloat16 and float64",
                    to_string(dtype), to_string(conversion.dtype));
      dtype = conversion.dtype;
    }
  }

  const Metadata& metadata() const noexcept override { return metadata_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    ChunkPayload payload = source_->locate(tensor, chunk, file);
    const auto found = conversions_.find(static_cast<std::uint32_t>(tensor));
    if (found == conversions_.end()) return payload;
    const TensorStorageMetadata& stored = metadata_.tensors[tensor];
    const ShapeView sizes = stored.chunks.sizes(chunk);
    std::uint64_t count = numel(sizes) == 0 ? 0 : 1;
    for (std::size_t axis = 0; count > 0 && axis < sizes.size(); ++axis)
      count += static_cast<std::uint64_t>((sizes[axis] - 1) * payload.strides[axis]);
    ChunkPayload result{
        .dtype = found->second.dtype, .strides = payload.strides, .contiguous = payload.contiguous};
    result.decoded = std::make_shared<ConvertedChunk>(
        file, std::move(payload), stored.chunks[chunk], count, found->second, stored.key);
    return result;
  }

 private:
  std::map<std::uint32_t, ElementConversion> conversions_;
  Metadata metadata_;
};

}  // namespace

std::unique_ptr<CheckpointReader> converted_reader(
    std::unique_ptr<CheckpointReader> source,
    std::map<std::uint32_t, ElementConversion> conversions) {
  return std::make_unique<ConvertedReader>(std::move(source), std::move(conversions));
}

bool is_convertible(DType dtype) noexcept {
  return precision(dtype).has_value();
}

bool comes_back(DType from, DType through) noexcept {
  const auto narrow = precision(from);
  const auto wide = precision(through);
  return from == through ||
         (narrow && wide && narrow->first <= wide->first && narrow->second <= wide->second);
}

}  // namespace dckpt
