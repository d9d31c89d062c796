#include "mapping/planning/load/read_plan.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/planning/chunk_index.h"
#include "mapping/planning/reformulation.h"

namespace dckpt {
namespace {

/// A box of the global tensor whose elements are located at view.offset + Σ (coordinate −
/// box.offsets)·strides of some buffer.
struct Region {
  Box box;
  StridedView view;
};

/// Appends the row-major elements [begin, end) of `outer`, in a buffer where the first of them has
/// position `at`.
void append_range(const Box& outer, std::int64_t begin, std::int64_t end, std::int64_t at,
                  std::vector<Region>& out) {
  const Shape strides = row_major_strides(outer.sizes);
  for (FlatPiece& piece : split_flat_range(outer.sizes, begin, end)) {
    for (std::size_t axis = 0; axis < outer.dims(); ++axis)
      piece.box.offsets[axis] += outer.offsets[axis];
    out.push_back({std::move(piece.box), {at + piece.begin - begin, strides}});
  }
}

std::vector<Region> target_regions(const WantedShard& wanted) {
  std::vector<Region> regions;
  if (!wanted.range) {
    regions.push_back(
        {wanted.box, {0, wanted.strides ? *wanted.strides : row_major_strides(wanted.box.sizes)}});
    return regions;
  }
  append_range(wanted.box, wanted.range->begin, wanted.range->end, 0, regions);
  if (!wanted.strides) return regions;
  for (Region& region : regions) {
    region.view.offset *= wanted.strides->front();
    for (std::int64_t& stride : region.view.strides) stride *= wanted.strides->front();
  }
  return regions;
}

/// The places of a tensor's stored chunks in the global tensor.
class StoredChunks {
 public:
  explicit StoredChunks(const TensorStorageMetadata& tensor)
      : tensor_(tensor), index_(tensor.chunks) {
    if (tensor.flattened_shape) cell_shape_ = reformulated_cell_shape(tensor);
  }

  /// Returns the number of chunks that may have elements of the wanted box.
  std::size_t count(const Box& wanted) {
    find(wanted);
    return found_.size();
  }

  /// Calls visit(chunk, regions) for these chunks, in their order.
  template <typename Visit>
  void visit(const Box& wanted, Visit&& visit) {
    const std::optional<Box> cells = find(wanted);
    for (const std::uint32_t chunk : found_) {
      regions_.clear();
      if (cells) {
        collect_reformulated(chunk, *cells);
      } else {
        const ShapeView sizes = tensor_.chunks.sizes(chunk);
        regions_.push_back({tensor_.chunks[chunk], {0, row_major_strides(sizes)}});
      }
      visit(chunk, std::as_const(regions_));
    }
  }

 private:
  /// Finds the chunks; returns the cells of a reformulated tensor that the box touches.
  std::optional<Box> find(const Box& wanted) {
    found_.clear();
    if (!tensor_.flattened_shape) {
      index_.find(wanted, found_);
      return std::nullopt;
    }
    std::optional<Box> cells = touched_cells(wanted);
    if (!cells) return std::nullopt;
    Box stored = *cells;
    stored.offsets.push_back(0);
    stored.sizes.push_back(tensor_.size.back());
    index_.find(stored, found_);
    return cells;
  }

  /// Returns the cells of the grid that the wanted box touches: a box of coordinates.
  std::optional<Box> touched_cells(const Box& wanted) const {
    const std::size_t dims = cell_shape_.size();
    Box cells{Shape(dims), Shape(dims)};
    for (std::size_t axis = 0; axis < dims; ++axis) {
      const std::int64_t cell = cell_shape_[axis];
      if (cell == 0 || wanted.sizes[axis] == 0) return std::nullopt;
      cells.offsets[axis] = wanted.offsets[axis] / cell;
      cells.sizes[axis] =
          (wanted.offsets[axis] + wanted.sizes[axis] - 1) / cell + 1 - cells.offsets[axis];
    }
    return cells;
  }

  /// Collects the regions of a chunk of a reformulated tensor, which holds the same flat range of
  /// one or (if some tool merged them) several cells of the grid.
  void collect_reformulated(std::size_t chunk, const Box& cells) {
    const ShapeView offsets = tensor_.chunks.offsets(chunk);
    const ShapeView sizes = tensor_.chunks.sizes(chunk);
    const std::size_t dims = cell_shape_.size();
    const std::int64_t begin = offsets[dims];
    const std::int64_t length = sizes[dims];
    const Box stored{Shape(offsets.begin(), offsets.begin() + static_cast<std::ptrdiff_t>(dims)),
                     Shape(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(dims))};
    const auto touched = intersect(cells, stored);
    if (!touched) return;
    Shape order = row_major_strides(stored.sizes);
    for (std::int64_t& stride : order) stride *= length;
    for_each_cell(*touched, [&](const Shape& cell) {
      Box outer{Shape(dims), cell_shape_};
      std::int64_t at = 0;
      for (std::size_t axis = 0; axis < dims; ++axis) {
        outer.offsets[axis] = cell[axis] * cell_shape_[axis];
        at += (cell[axis] - stored.offsets[axis]) * order[axis];
      }
      append_range(outer, begin, begin + length, at, regions_);
    });
  }

  template <typename Visit>
  static void for_each_cell(const Box& cells, Visit&& visit) {
    Shape cell = cells.offsets;
    const std::int64_t count = numel(cells.sizes);
    for (std::int64_t i = 0; i < count; ++i) {
      visit(cell);
      for (std::size_t axis = cells.dims(); axis-- > 0;) {
        if (++cell[axis] < cells.offsets[axis] + cells.sizes[axis]) break;
        cell[axis] = cells.offsets[axis];
      }
    }
  }

  const TensorStorageMetadata& tensor_;
  Shape cell_shape_;
  ChunkIndex index_;
  std::vector<std::uint32_t> found_;
  std::vector<Region> regions_;
};

StridedView shifted(const Region& region, const Box& part) {
  StridedView view = region.view;
  for (std::size_t axis = 0; axis < part.dims(); ++axis)
    view.offset += (part.offsets[axis] - region.box.offsets[axis]) * view.strides[axis];
  return view;
}

}  // namespace

std::vector<ReadItem> plan_reads(const Metadata& metadata, std::span<const WantedShard> wanted) {
  std::unordered_map<std::uint32_t, StoredChunks> stored;
  std::size_t count = 0;
  for (const WantedShard& shard : wanted) {
    const TensorStorageMetadata& tensor = metadata.tensors[shard.tensor];
    if (!is_valid(shard.box) || shard.box.dims() != tensor.global_shape().size() ||
        (!shard.clip && !fits(shard.box, tensor.global_shape()))) {
      throw_error(ErrorCode::kMismatch, {.key = tensor.key},
                  "the part {} is wanted of a tensor of shape {}", to_string(shard.box),
                  to_string(tensor.global_shape()));
    }
    count += stored.try_emplace(shard.tensor, tensor).first->second.count(shard.box);
  }
  // Items are large: while a vector of many of them grows, fresh memory costs more than the plan.
  std::vector<ReadItem> items;
  items.reserve(count);
  for (const WantedShard& shard : wanted) {
    const std::vector<Region> targets = target_regions(shard);
    stored.at(shard.tensor)
        .visit(shard.box, [&](std::uint32_t chunk, const std::vector<Region>& sources) {
          for (const Region& source : sources) {
            for (const Region& target : targets) {
              const auto common = intersect(source.box, target.box);
              if (common)
                items.push_back({shard.tensor, chunk, shard.destination, common->sizes,
                                 shifted(source, *common), shifted(target, *common),
                                 common->offsets});
            }
          }
        });
  }
  return items;
}

}  // namespace dckpt
