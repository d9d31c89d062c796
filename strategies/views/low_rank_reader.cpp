#include "strategies/views/low_rank_reader.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/geometry/cast.h"
#include "mapping/state/tensor.h"
#include "strategies/contract/forwarding_reader.h"
#include "strategies/contract/made_chunk.h"
#include "strategies/contract/recent_tiles.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/converted_reader.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kTiles = 32;  // pieces of factors in memory
constexpr std::uint64_t kSmallestTile = std::uint64_t{16} << 10;
constexpr std::int64_t kElementsAtOnce = 512;  // elements of a row that are summed up together

/// A part of a matrix in float32, row-major.
struct Tile {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<float> values{};

  const float* row(std::int64_t number) const { return values.data() + number * columns; }
};

/// A range of rows or columns of a factor: [first, second).
using AxisRange = std::pair<std::int64_t, std::int64_t>;

Tile read_tile(const CheckpointReader& factors, const LowRankFactor& factor, AxisRange rows,
               AxisRange columns) {
  const std::size_t axes = factors.metadata().tensors[factor.tensor].global_shape().size();
  const auto along = [](AxisRange range) { return range.second - range.first; };
  Box box{{rows.first, columns.first}, {along(rows), along(columns)}};
  if (factor.transposed) {
    std::swap(box.offsets[0], box.offsets[1]);
    std::swap(box.sizes[0], box.sizes[1]);
  }
  if (axes == 1) box = {{columns.first}, {along(columns)}};
  const Tensor stored =
      read_box(factors, factor.tensor, box, {.threads = 1, .staging = kRowStaging});
  Tile tile{along(rows), along(columns),
            std::vector<float>(static_cast<std::size_t>(stored.numel()))};
  cast_elements(stored.dtype(), stored.data(), DType::kFloat32,
                reinterpret_cast<std::byte*>(tile.values.data()), tile.values.size());
  if (!factor.transposed) return tile;
  std::vector<float> turned(tile.values.size());
  for (std::int64_t row = 0; row < tile.rows; ++row) {
    for (std::int64_t column = 0; column < tile.columns; ++column)
      turned[static_cast<std::size_t>(row * tile.columns + column)] =
          tile.values[static_cast<std::size_t>(column * tile.rows + row)];
  }
  tile.values = std::move(turned);
  return tile;
}

/// The most recently read pieces of right factors, by tensor and first column.
class TileCache : public RecentTiles<std::pair<std::uint32_t, std::int64_t>, Tile> {
 public:
  explicit TileCache(std::uint64_t memory)
      : RecentTiles(kTiles / 2), bytes_of_tile_(std::max(memory / kTiles, kSmallestTile)) {}

  std::uint64_t bytes_of_tile() const noexcept { return bytes_of_tile_; }

 private:
  std::uint64_t bytes_of_tile_;
};

/// Computes sums[j] = Σₖ left[k] × right[k, first + j], in an order that depends on the rank alone.
void multiply(const float* left, const Tile& right, std::int64_t first, std::int64_t count,
              float* sums) {
  std::fill_n(sums, count, 0.0F);
  std::int64_t k = 0;
  for (; k + 4 <= right.rows; k += 4) {  // fewer passes over the sums
    const float* const a = right.row(k) + first;
    const float* const b = right.row(k + 1) + first;
    const float* const c = right.row(k + 2) + first;
    const float* const d = right.row(k + 3) + first;
    for (std::int64_t j = 0; j < count; ++j)
      sums[j] += (left[k] * a[j] + left[k + 1] * b[j]) + (left[k + 2] * c[j] + left[k + 3] * d[j]);
  }
  for (; k < right.rows; ++k) {
    const float* const a = right.row(k) + first;
    for (std::int64_t j = 0; j < count; ++j) sums[j] += left[k] * a[j];
  }
}

/// A tensor, and the product that is added to it.
struct Sum {
  const CheckpointReader& factors;
  LowRankTerm term;
  std::int64_t rank = 1;
  std::int64_t columns = 0;  ///< columns of the tensor
  std::string key;
  TileCache& cache;

  std::int64_t columns_of_tile() const {
    const auto most = static_cast<std::int64_t>(cache.bytes_of_tile() / sizeof(float));
    return std::clamp<std::int64_t>(most / rank, 1, columns);
  }
  std::int64_t rows_of_tile() const {
    const auto most = static_cast<std::int64_t>(cache.bytes_of_tile() / sizeof(float));
    return std::max<std::int64_t>(most / rank, 1);
  }
  std::shared_ptr<const Tile> right(std::int64_t first_column) const {
    return cache.get({term.tensor, first_column}, [&] {
      const std::int64_t end = std::min(first_column + columns_of_tile(), columns);
      return read_tile(factors, term.right, {0, rank}, {first_column, end});
    });
  }
  Tile left(std::int64_t first, std::int64_t end) const {
    if (!term.left) return {end - first, 1, std::vector<float>(std::size_t(end - first), 1.0F)};
    return read_tile(factors, *term.left, {first, end}, {0, rank});
  }
};

/// The elements of a chunk, row-major, with the product added.
class LowRankChunk final : public ChangedChunk {
 public:
  LowRankChunk(const ReadableFile& file, ChunkPayload payload, Box box, const Sum& sum)
      : ChangedChunk(file, payload, payload.dtype, std::move(box)), sum_(sum) {}

 private:
  void make(std::int64_t first, MutableByteView elements) const override {
    read_stored(static_cast<std::uint64_t>(first) * item(), elements);
    const AxisRange wanted{first, first + static_cast<std::int64_t>(elements.size() / item())};
    const std::int64_t width = box().sizes.back();
    const std::int64_t end_row = (wanted.second - 1) / width + 1;
    for (std::int64_t row = wanted.first / width; row < end_row;) {
      const std::int64_t end = std::min(row + sum_.rows_of_tile(), end_row);
      add_rows({row, end}, wanted, elements);
      row = end;
    }
  }

  /// Adds the product to the `wanted` elements of the rows, which are in `into`.
  void add_rows(AxisRange rows, AxisRange wanted, MutableByteView into) const {
    const std::int64_t width = box().sizes.back();
    const std::int64_t first_row = box().dims() == 1 ? 0 : box().offsets[0];
    const std::int64_t first_column = box().offsets.back();
    const std::int64_t of_tile = sum_.columns_of_tile();
    const Tile left = sum_.left(first_row + rows.first, first_row + rows.second);
    std::vector<float> sums(static_cast<std::size_t>(kElementsAtOnce));
    for (std::int64_t tile_begin = first_column / of_tile * of_tile;
         tile_begin < first_column + width; tile_begin += of_tile) {
      const std::shared_ptr<const Tile> right = sum_.right(tile_begin);
      for (std::int64_t row = rows.first; row < rows.second; ++row) {
        const std::int64_t start = row * width - first_column;  // position of column 0 of the row
        std::int64_t at = std::max({wanted.first, row * width, start + tile_begin});
        const std::int64_t end =
            std::min({wanted.second, (row + 1) * width, start + tile_begin + right->columns});
        while (at < end) {
          const std::int64_t count = std::min(end - at, kElementsAtOnce);
          multiply(left.row(row - rows.first), *right, at - start - tile_begin, count, sums.data());
          add(sums.data(), into.data() + static_cast<std::size_t>(at - wanted.first) * item(),
              static_cast<std::size_t>(count));
          at += count;
        }
      }
    }
  }

  template <typename Number>
  void add_as(const float* sums, std::byte* elements, std::size_t count, DType computed) const {
    std::vector<Number> values(count);
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    cast_elements(dtype(), elements, computed, bytes, count);
    for (std::size_t i = 0; i < count; ++i) values[i] += sum_.term.scale * sums[i];
    require_finite(values, elements);
    cast_elements(computed, bytes, dtype(), elements, count);
    const std::size_t i = first_too_large(computed, bytes, dtype(), elements, count);
    if (i == count) return;
    throw_error(ErrorCode::kMismatch, {.key = sum_.key, .file = name()},
                "with what is added, a weight is {}, which would be infinite in {}; store the "
                "model as bfloat16 or float32 first",
                values[i], to_string(dtype()));
  }

  /// Throws for a sum that is not finite, unless the element to which something was added is not.
  template <typename Number>
  void require_finite(const std::vector<Number>& values, const std::byte* elements) const {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      double before = 0;
      cast_elements(dtype(), elements + i * item(), DType::kFloat64,
                    reinterpret_cast<std::byte*>(&before), 1);
      if (!std::isfinite(before)) continue;
      throw_error(ErrorCode::kMismatch, {.key = sum_.key, .file = name()},
                  "a weight is {}, and with what is added it becomes {}: the adapter or its "
                  "scale ({}) is damaged or too large (dckpt stats shows the values of its "
                  "tensors)",
                  before, values[i], sum_.term.scale);
    }
  }

  void add(const float* sums, std::byte* elements, std::size_t count) const {
    if (dtype() == DType::kFloat64)
      add_as<double>(sums, elements, count, DType::kFloat64);
    else
      add_as<float>(sums, elements, count, DType::kFloat32);
  }

  const Sum& sum_;
};

class LowRankReader final : public ForwardingReader {
 public:
  LowRankReader(std::unique_ptr<CheckpointReader> source,
                std::shared_ptr<const CheckpointReader> factors,
                const std::vector<LowRankTerm>& terms, std::uint64_t memory)
      : ForwardingReader(std::move(source)), factors_(std::move(factors)), cache_(memory) {
    for (const LowRankTerm& term : terms) {
      const TensorStorageMetadata& tensor = source_->metadata().tensors.at(term.tensor);
      const std::int64_t rank = check(tensor, term);
      const std::uint32_t position = term.tensor;
      const bool added =
          sums_
              .emplace(position,
                       Sum{*factors_, term, rank, tensor.global_shape().back(), tensor.key, cache_})
              .second;
      if (!added)
        throw_error(ErrorCode::kMismatch, {.key = tensor.key},
                    "two products are to be added to one tensor");
    }
  }

  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    ChunkPayload payload = source_->locate(tensor, chunk, file);
    const auto found = sums_.find(static_cast<std::uint32_t>(tensor));
    if (found == sums_.end()) return payload;
    const TensorStorageMetadata& stored = metadata().tensors[tensor];
    require_row_major(payload, stored.key);
    return payload_of(std::make_shared<LowRankChunk>(file, std::move(payload), stored.chunks[chunk],
                                                     found->second));
  }

 private:
  /// Returns the inner extent of the product.
  std::int64_t check(const TensorStorageMetadata& tensor, const LowRankTerm& term) const {
    const auto refuse = [&](ErrorCode code, const std::string& message) {
      return CheckpointError(code, message, {.key = tensor.key});
    };
    if (!is_convertible(tensor.properties.dtype) || tensor.flattened_shape)
      throw refuse(
          ErrorCode::kUnsupported,
          str_format("nothing can be added to a tensor that is {}; expected float32, "
                     "float16, bfloat16 or float64",
                     tensor.flattened_shape ? "flattened" : to_string(tensor.properties.dtype)));
    const Shape& shape = tensor.global_shape();
    const Shape right = shape_of(term.right);
    if (!term.left) {
      if (shape.size() == 1 && right == shape) return 1;
      throw refuse(ErrorCode::kMismatch,
                   str_format("a tensor of the shape {} is to be added to one of the shape {}",
                              to_string(right), to_string(shape)));
    }
    const Shape left = shape_of(*term.left);
    if (shape.size() == 2 && left.size() == 2 && right.size() == 2 && left[1] == right[0] &&
        left[1] > 0 && left[0] == shape[0] && right[1] == shape[1])
      return left[1];
    throw refuse(ErrorCode::kMismatch,
                 str_format("the product of {} and {} is to be added to a tensor of the shape {}",
                            to_string(left), to_string(right), to_string(shape)));
  }

  Shape shape_of(const LowRankFactor& factor) const {
    const TensorStorageMetadata& tensor = factors_->metadata().tensors.at(factor.tensor);
    if (!can_cast(tensor.properties.dtype, DType::kFloat32))
      throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                  "a factor is {}, expected float32 or another float",
                  to_string(tensor.properties.dtype));
    Shape shape = tensor.global_shape();
    if (factor.transposed) std::ranges::reverse(shape);
    return shape;
  }

  std::shared_ptr<const CheckpointReader> factors_;
  mutable TileCache cache_;
  std::unordered_map<std::uint32_t, Sum> sums_;
};

}  // namespace

std::unique_ptr<CheckpointReader> low_rank_reader(std::unique_ptr<CheckpointReader> source,
                                                  std::shared_ptr<const CheckpointReader> factors,
                                                  const std::vector<LowRankTerm>& terms,
                                                  std::uint64_t memory) {
  return std::make_unique<LowRankReader>(std::move(source), std::move(factors), terms, memory);
}

}  // namespace dckpt
