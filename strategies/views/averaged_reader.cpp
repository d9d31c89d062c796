#include "strategies/views/averaged_reader.h"

#include <algorithm>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/geometry/cast.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kStaging = std::uint64_t{256} << 10;  // of each read
constexpr std::size_t kBlock = std::size_t{64} << 10;         // elements that are summed at a time

/// The elements of a chunk, row-major, summed with those of other checkpoints.
class SummedChunk final : public ReadableFile {
 public:
  /// The elements of `box` are in `payload.decoded`, or else in `file`.
  SummedChunk(const ReadableFile& file, ChunkPayload payload, Box box, std::string key,
              const WeightedSum& sum)
      : file_(file),
        stored_(std::move(payload)),
        box_(std::move(box)),
        key_(std::move(key)),
        sum_(sum) {}

  const std::string& name() const noexcept override { return file_.name(); }
  std::uint64_t size() const noexcept override {
    return static_cast<std::uint64_t>(numel(box_.sizes)) * item_size(stored_.dtype);
  }
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    elements().prefetch(stored_.offset + offset, length);
  }

  void read(std::uint64_t offset, MutableByteView into) const override {
    const std::size_t item = item_size(stored_.dtype);
    if (offset % item != 0 || into.size() % item != 0 || !range_fits(offset, into.size(), size()))
      throw CheckpointError(ErrorCode::kCorrupt,
                            "a read goes past the elements of a tensor, or divides one",
                            {.file = name(), .offset = offset});
    elements().read(stored_.offset + offset, into);
    const std::size_t count = into.size() / item;
    for (std::size_t done = 0; done < count; done += kBlock) {
      const auto first = static_cast<std::int64_t>(offset / item + done);
      const std::size_t size = std::min(kBlock, count - done);
      if (stored_.dtype == DType::kFloat64)
        sum<double>(DType::kFloat64, first, into.data() + done * item, size);
      else
        sum<float>(DType::kFloat32, first, into.data() + done * item, size);
    }
  }

 private:
  const ReadableFile& elements() const { return stored_.decoded ? *stored_.decoded : file_; }

  /// Replaces elements by their sums; the first of them is element `first` of the chunk.
  template <typename Number>
  void sum(DType computed, std::int64_t first, std::byte* elements, std::size_t count) const {
    std::vector<Number> sums(count), values(count);
    auto* const bytes = reinterpret_cast<std::byte*>(sums.data());
    cast_elements(stored_.dtype, elements, computed, bytes, count);
    for (Number& value : sums) value *= static_cast<Number>(sum_.weight);
    for (const WeightedTensor& other : sum_.others) {
      read_other(other, computed, first, values);
      const auto weight = static_cast<Number>(other.weight);
      for (std::size_t i = 0; i < count; ++i) sums[i] += weight * values[i];
    }
    cast_elements(computed, bytes, stored_.dtype, elements, count);
    const std::size_t i = first_too_large(computed, bytes, stored_.dtype, elements, count);
    if (i == count) return;
    throw CheckpointError(ErrorCode::kMismatch,
                          str_format("an average is {}, which would be infinite in {}; convert the "
                                     "first model to bfloat16 or float32 before",
                                     sums[i], to_string(stored_.dtype)),
                          {.key = key_, .file = name()});
  }

  /// Reads another checkpoint's elements of the same places.
  template <typename Number>
  void read_other(const WeightedTensor& other, DType computed, std::int64_t first,
                  std::vector<Number>& into) const {
    const auto end = first + static_cast<std::int64_t>(into.size());
    for (FlatPiece& piece : split_flat_range(box_.sizes, first, end)) {
      for (std::size_t axis = 0; axis < box_.dims(); ++axis)
        piece.box.offsets[axis] += box_.offsets[axis];
      const Tensor part =
          read_box(*other.reader, other.tensor, piece.box, {.threads = 1, .staging = kStaging});
      cast_elements(part.dtype(), part.data(), computed,
                    reinterpret_cast<std::byte*>(into.data() + (piece.begin - first)),
                    static_cast<std::size_t>(part.numel()));
    }
  }

  const ReadableFile& file_;
  ChunkPayload stored_;
  Box box_;
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
    if (!payload.contiguous)
      throw CheckpointError(ErrorCode::kUnsupported,
                            "tensors that are averaged have to lie row-major; convert the "
                            "checkpoint once without averaging",
                            {.key = stored.key});
    const Box box = stored.chunks[chunk];
    ChunkPayload result{
        .offset = 0, .dtype = payload.dtype, .strides = row_major_strides(box.sizes)};
    result.decoded =
        std::make_shared<SummedChunk>(file, std::move(payload), box, stored.key, found->second);
    return result;
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
