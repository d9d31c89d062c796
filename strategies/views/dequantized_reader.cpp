#include "strategies/views/dequantized_reader.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "mapping/geometry/cast.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

bool is_float8(DType dtype) {
  return dtype == DType::kFloat8E4M3FN || dtype == DType::kFloat8E4M3FNUZ ||
         dtype == DType::kFloat8E5M2 || dtype == DType::kFloat8E5M2FNUZ;
}

std::int64_t blocks_of(std::int64_t extent, std::int64_t block) {
  return extent / block + (extent % block != 0 ? 1 : 0);
}

/// The scales of a tensor, in float32.
class ScaleGrid {
 public:
  ScaleGrid(const BlockScales& scales, const Tensor& stored)
      : rows_(scales.rows),
        columns_(scales.columns),
        shape_(stored.shape()),
        values_(static_cast<std::size_t>(stored.numel())) {
    cast_elements(stored.dtype(), stored.data(), DType::kFloat32,
                  reinterpret_cast<std::byte*>(values_.data()), values_.size());
  }

  /// Returns the scales of a row of the tensor, given by its index on all axes but the last.
  const float* row(ShapeView index) const {
    if (values_.size() == 1) return values_.data();  // whatever its shape
    std::int64_t position = 0;
    for (std::size_t axis = 0; axis < index.size(); ++axis) {
      const bool in_blocks = axis + 1 == index.size();
      position = position * shape_[axis] + (in_blocks ? index[axis] / rows_ : index[axis]);
    }
    return values_.data() + position * shape_.back();
  }
  std::int64_t columns() const noexcept { return columns_; }

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  Shape shape_;
  std::vector<float> values_;
};

/// The values of a chunk of weights, row-major.
class DequantizedChunk final : public ReadableFile {
 public:
  /// The weights are in `payload.decoded`, or else in `file`.
  DequantizedChunk(const ReadableFile& file, ChunkPayload payload, Box box,
                   std::shared_ptr<const ScaleGrid> scales, DType dtype, std::string key)
      : file_(file),
        weights_(std::move(payload)),
        box_(std::move(box)),
        scales_(std::move(scales)),
        dtype_(dtype),
        key_(std::move(key)) {}

  const std::string& name() const noexcept override { return file_.name(); }
  std::uint64_t size() const noexcept override {
    return static_cast<std::uint64_t>(numel(box_.sizes)) * item_size(dtype_);
  }
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    stored().prefetch(weights_.offset + offset / item_size(dtype_), length / item_size(dtype_));
  }

  void read(std::uint64_t offset, MutableByteView into) const override {
    const std::size_t item = item_size(dtype_);
    if (offset % item != 0 || into.size() % item != 0 || !range_fits(offset, into.size(), size()))
      throw CheckpointError(ErrorCode::kCorrupt,
                            "a read goes past the elements of a weight, or divides one",
                            {.file = name(), .offset = offset});
    // Weights are smaller than their values: they fit at the end of `into`, and the values replace
    // them.
    const std::size_t count = into.size() / item;
    const auto first = static_cast<std::int64_t>(offset / item);
    const MutableByteView weights = into.last(count);
    stored().read(weights_.offset + static_cast<std::uint64_t>(first), weights);
    const std::int64_t width = box_.sizes.back();
    for (std::size_t done = 0; done < count;) {
      const std::int64_t position = first + static_cast<std::int64_t>(done);
      const std::int64_t begin = position % width;
      const std::size_t in_row = std::min(count - done, static_cast<std::size_t>(width - begin));
      const float* const scales = scales_->row(row_at(position / width));
      std::int64_t column = box_.offsets.back() + begin;
      const std::int64_t end = column + static_cast<std::int64_t>(in_row);
      while (column < end) {
        const std::int64_t block = column / scales_->columns();
        const std::int64_t run =
            std::min({end, (block + 1) * scales_->columns(), column + kMostAtOnce}) - column;
        scale(weights.data() + done, scales[block], into.data() + done * item,
              static_cast<std::size_t>(run));
        column += run;
        done += static_cast<std::size_t>(run);
      }
    }
  }

 private:
  static constexpr std::int64_t kMostAtOnce = 256;

  const ReadableFile& stored() const { return weights_.decoded ? *weights_.decoded : file_; }

  /// Returns the index in the tensor of a row of the chunk.
  Shape row_at(std::int64_t row) const {
    Shape index(box_.dims() - 1, 0);
    for (std::size_t axis = index.size(); axis-- > 0;) {
      index[axis] = box_.offsets[axis] + row % box_.sizes[axis];
      row /= box_.sizes[axis];
    }
    return index;
  }

  /// Scales weights. `values` may overlap them from behind.
  void scale(const std::byte* weights, float by, std::byte* values, std::size_t count) const {
    std::array<float, kMostAtOnce> floats;
    cast_elements(weights_.dtype, weights, DType::kFloat32,
                  reinterpret_cast<std::byte*>(floats.data()), count);
    for (std::size_t i = 0; i < count; ++i) floats[i] *= by;
    cast_elements(DType::kFloat32, reinterpret_cast<const std::byte*>(floats.data()), dtype_,
                  values, count);
    const auto* const products = reinterpret_cast<const std::byte*>(floats.data());
    const std::size_t i = first_too_large(DType::kFloat32, products, dtype_, values, count);
    if (i == count) return;
    throw CheckpointError(ErrorCode::kMismatch,
                          str_format("a weight is worth {}, which would be infinite in {}; choose "
                                     "dequantize=bfloat16 or dequantize=float32",
                                     floats[i], to_string(dtype_)),
                          {.key = key_, .file = name()});
  }

  const ReadableFile& file_;
  ChunkPayload weights_;
  Box box_;
  std::shared_ptr<const ScaleGrid> scales_;
  DType dtype_;
  std::string key_;
};

/// A tensor of the source, and its scales.
struct Origin {
  std::size_t tensor = 0;
  std::optional<std::size_t> scales{};
};

class DequantizedReader final : public ForwardingReader {
 public:
  DequantizedReader(std::unique_ptr<CheckpointReader> source, const BlockScales& scales)
      : ForwardingReader(std::move(source)), scales_(scales), metadata_(source_->metadata()) {
    pair_up();
  }

  const Metadata& metadata() const noexcept override { return metadata_; }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    const auto& [position, scales] = origins_.at(tensor);
    ChunkPayload payload = source_->locate(position, chunk, file);
    if (!scales) return payload;
    if (!payload.contiguous)
      throw CheckpointError(ErrorCode::kUnsupported,
                            "weights with scales have to lie row-major; convert the checkpoint "
                            "once without changing its keys");
    const Box box = metadata_.tensors[tensor].chunks[chunk];
    return {.offset = 0,
            .dtype = scales_.dtype,
            .strides = row_major_strides(box.sizes),
            .decoded =
                std::make_shared<DequantizedChunk>(file, std::move(payload), box, grid(*scales),
                                                   scales_.dtype, metadata_.tensors[tensor].key)};
  }

  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    return source_->check_chunk(origins_.at(tensor).tensor, chunk, file);
  }

 private:
  void pair_up() {
    const std::vector<TensorStorageMetadata>& stored = source_->metadata().tensors;
    std::unordered_map<std::string_view, std::size_t> positions;
    for (std::size_t i = 0; i < stored.size(); ++i) positions.emplace(stored[i].key, i);
    const auto is_scale = [&](const std::string& key) {
      return key.ends_with(scales_.suffix) && key.size() > scales_.suffix.size();
    };
    metadata_.tensors.clear();
    ProblemList problems;
    for (std::size_t i = 0; i < stored.size(); ++i) {
      const std::string& key = stored[i].key;
      if (is_scale(key)) {
        const std::string weight = key.substr(0, key.size() - scales_.suffix.size());
        if (!positions.contains(weight))
          problems.add(str_format("{}: there is no {} that it scales", quote(key), quote(weight)));
        continue;
      }
      metadata_.tensors.push_back(stored[i]);
      const auto found = positions.find(key + scales_.suffix);
      const bool scaled = found != positions.end();
      origins_.push_back({i, scaled ? std::optional(found->second) : std::nullopt});
      if (scaled)
        check(stored[i], stored[found->second], problems);
      else if (is_float8(stored[i].properties.dtype))
        problems.add(str_format("{} is {}, but its scales {} are missing", quote(key),
                                to_string(stored[i].properties.dtype),
                                quote(key + scales_.suffix)));
      if (scaled) metadata_.tensors.back().properties.dtype = scales_.dtype;
    }
    problems.raise_if_any(
        ErrorCode::kMismatch,
        str_format("the weights cannot be dequantized; by the map, the scales of X are X{}, one "
                   "for each block of {} × {}:",
                   scales_.suffix, scales_.rows, scales_.columns));
  }

  void check(const TensorStorageMetadata& weight, const TensorStorageMetadata& scales,
             ProblemList& problems) const {
    if (!is_float8(weight.properties.dtype))
      return problems.add(str_format("{} has scales, but is {}, not float8", quote(weight.key),
                                     to_string(weight.properties.dtype)));
    if (!can_cast(scales.properties.dtype, DType::kFloat32))
      return problems.add(str_format("{} is {}, expected float32 or another float",
                                     quote(scales.key), to_string(scales.properties.dtype)));
    if (weight.flattened_shape)
      return problems.add(quote(weight.key) +
                          " is stored flattened; convert it without a map once");
    Shape expected = weight.global_shape();
    if (expected.size() >= 2) {
      std::int64_t& rows = *(expected.end() - 2);
      rows = blocks_of(rows, scales_.rows);
      expected.back() = blocks_of(expected.back(), scales_.columns);
      const Shape& found = scales.global_shape();
      if (found == expected || (numel(found) == 1 && numel(expected) == 1))
        return check_size(scales);
    }
    problems.add(str_format(
        "{} has the shape {}, but {} has {}; expected a scale for each block of {} × {}{}",
        quote(scales.key), to_string(scales.global_shape()), quote(weight.key),
        to_string(weight.global_shape()), scales_.rows, scales_.columns,
        expected.size() >= 2 ? ": " + to_string(expected) : std::string()));
  }

  static void check_size(const TensorStorageMetadata& scales) {
    if (static_cast<std::uint64_t>(numel(scales.global_shape())) <= kMaxScaleBytes / sizeof(float))
      return;
    throw CheckpointError(
        ErrorCode::kUnsupported,
        str_format("a tensor has more scales than {} hold", human_bytes(kMaxScaleBytes)),
        {.key = scales.key});
  }

  /// Returns the same scales to all who read a tensor at the same time, and for the next piece of
  /// it.
  std::shared_ptr<const ScaleGrid> grid(std::size_t tensor) const {
    const std::lock_guard lock(mutex_);
    std::weak_ptr<const ScaleGrid>& known = grids_[tensor];
    std::shared_ptr<const ScaleGrid> found = known.lock();
    if (!found) {
      const Box all = whole(source_->metadata().tensors[tensor].global_shape());
      found = std::make_shared<ScaleGrid>(scales_, read_box(*source_, tensor, all));
      known = found;
    }
    return last_ = found;
  }

  BlockScales scales_;
  Metadata metadata_;
  std::vector<Origin> origins_;  // same order as its tensors
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::size_t, std::weak_ptr<const ScaleGrid>> grids_;
  mutable std::shared_ptr<const ScaleGrid> last_;
};

}  // namespace

bool is_quantised(const Metadata& metadata, const std::string& suffix) {
  return std::ranges::any_of(metadata.tensors, [&](const TensorStorageMetadata& tensor) {
    return tensor.key.ends_with(suffix) || is_float8(tensor.properties.dtype);
  });
}

std::unique_ptr<CheckpointReader> dequantized_reader(std::unique_ptr<CheckpointReader> source,
                                                     const BlockScales& scales) {
  if (scales.rows < 1 || scales.columns < 1)
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("weights cannot have a scale for each block of {} × {}",
                                     scales.rows, scales.columns));
  return std::make_unique<DequantizedReader>(std::move(source), scales);
}

}  // namespace dckpt
