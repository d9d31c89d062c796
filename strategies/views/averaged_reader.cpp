#include "strategies/views/averaged_reader.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/contract/made_chunk.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::size_t kBlock = std::size_t{64} << 10;  // elements that are summed at a time

/// The elements of a chunk, row-major, summed with those of other checkpoints.
class SummedChunk final : public ChangedChunk {
 public:
  SummedChunk(const ReadableFile& file, ChunkPayload payload, Box box, std::string key,
              const WeightedSum& sum)
      : ChangedChunk(file, payload, payload.dtype, std::move(box)),
        key_(std::move(key)),
        sum_(sum) {}

 private:
  void make(std::int64_t first, MutableByteView elements) const override {
    read_stored(static_cast<std::uint64_t>(first) * item(), elements);
    const std::size_t count = elements.size() / item();
    for (std::size_t done = 0; done < count; done += kBlock) {
      const std::int64_t at = first + static_cast<std::int64_t>(done);
      const std::size_t size = std::min(kBlock, count - done);
      if (dtype() == DType::kFloat64)
        sum<double>(DType::kFloat64, at, elements.data() + done * item(), size);
      else
        sum<float>(DType::kFloat32, at, elements.data() + done * item(), size);
    }
  }

  /// Replaces elements by their sums; the first of them is element `first` of the chunk.
  template <typename Number>
  void sum(DType computed, std::int64_t first, std::byte* elements, std::size_t count) const {
    std::vector<Number> sums(count), values(count);
    auto* const bytes = reinterpret_cast<std::byte*>(sums.data());
    cast_elements(dtype(), elements, computed, bytes, count);
    for (Number& value : sums) value *= static_cast<Number>(sum_.weight);
    for (const WeightedTensor& other : sum_.others) {
      read_other(other, computed, first, values);
      const auto weight = static_cast<Number>(other.weight);
      for (std::size_t i = 0; i < count; ++i) sums[i] += weight * values[i];
    }
    cast_elements(computed, bytes, dtype(), elements, count);
    const std::size_t i = first_too_large(computed, bytes, dtype(), elements, count);
    if (i == count) return;
    throw_error(ErrorCode::kMismatch, {.key = key_, .file = name()},
                "an average is {}, which would be infinite in {}; convert the "
                "first model to bfloat16 or float32 before",
                sums[i], to_string(dtype()));
  }

  /// Reads another checkpoint's elements of the same places.
  template <typename Number>
  void read_other(const WeightedTensor& other, DType computed, std::int64_t first,
                  std::vector<Number>& into) const {
    const auto end = first + static_cast<std::int64_t>(into.size());
    for (FlatPiece& piece : split_flat_range(box().sizes, first, end)) {
      for (std::size_t axis = 0; axis < box().dims(); ++axis)
        piece.box.offsets[axis] += box().offsets[axis];
      const Tensor part =
          read_box(*other.reader, other.tensor, piece.box, {.threads = 1, .staging = kRowStaging});
      cast_elements(part.dtype(), part.data(), computed,
                    reinterpret_cast<std::byte*>(into.data() + (piece.begin - first)),
                    static_cast<std::size_t>(part.numel()));
    }
  }

  std::string key_;
  const WeightedSum& sum_;
};

class AveragedReader final : public ForwardingReader {
 public:
  AveragedReader(std::unique_ptr<CheckpointReader> source,
                 std::map<std::uint32_t, WeightedSum> sums)
      : ForwardingReader(std::move(source)), sums_(std::move(sums)) {}

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    ChunkPayload payload = source_->locate(tensor, chunk, file);
    const auto found = sums_.find(static_cast<std::uint32_t>(tensor));
    if (found == sums_.end()) return payload;
    const TensorStorageMetadata& stored = metadata().tensors[tensor];
    require_row_major(payload, stored.key);
    return payload_of(std::make_shared<SummedChunk>(file, std::move(payload), stored.chunks[chunk],
                                                    stored.key, found->second));
  }

  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    bool checked = source_->check_chunk(tensor, chunk, file);
    const auto found = sums_.find(static_cast<std::uint32_t>(tensor));
    if (found == sums_.end() || chunk > 0) return checked;
    for (const WeightedTensor& other : found->second.others) {
      const Metadata& its = other.reader->metadata();
      const std::vector<StorageInfo>& places = its.tensors[other.tensor].places;
      for (std::size_t i = 0; i < places.size(); ++i) {
        const auto its_file = other.reader->storage().open(its.files[places[i].file]);
        checked = other.reader->check_chunk(other.tensor, i, *its_file) && checked;
      }
    }
    return checked;
  }

 private:
  std::map<std::uint32_t, WeightedSum> sums_;
};

}  // namespace

std::unique_ptr<CheckpointReader> averaged_reader(std::unique_ptr<CheckpointReader> source,
                                                  std::map<std::uint32_t, WeightedSum> sums) {
  return std::make_unique<AveragedReader>(std::move(source), std::move(sums));
}

}  // namespace dckpt
