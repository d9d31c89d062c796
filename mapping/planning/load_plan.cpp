#include "mapping/planning/load_plan.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/planning/reformulation.h"

namespace dckpt {
namespace {

/// A box of the global tensor whose elements lie at view.offset + Σ (coordinate − box.offsets)·strides of some buffer.
struct Region {
  Box box;
  StridedView view;
};

/// The row-major elements [begin, end) of `outer`, in a buffer where the first of them has position `at`.
void append_range(const Box& outer, std::int64_t begin, std::int64_t end, std::int64_t at, std::vector<Region>& out) {
  const Shape strides = row_major_strides(outer.sizes);
  for (FlatPiece& piece : split_flat_range(outer.sizes, begin, end)) {
    for (std::size_t axis = 0; axis < outer.dims(); ++axis) piece.box.offsets[axis] += outer.offsets[axis];
    out.push_back({std::move(piece.box), {at + piece.begin - begin, strides}});
  }
}

std::vector<Region> target_regions(const WantedShard& wanted) {
  std::vector<Region> regions;
  if (!wanted.range) {
    regions.push_back({wanted.box, {0, wanted.strides ? *wanted.strides : row_major_strides(wanted.box.sizes)}});
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

bool overlaps(const Box& box, ShapeView offsets, ShapeView sizes) noexcept {
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    if (offsets[axis] >= box.offsets[axis] + box.sizes[axis] || box.offsets[axis] >= offsets[axis] + sizes[axis]) return false;
  }
  return true;
}

/// Where a stored chunk's elements lie in the global tensor, as far as they can touch `wanted`.
class ChunkRegions {
 public:
  explicit ChunkRegions(const TensorMetadata& tensor) : tensor_(tensor) {
    if (tensor.flattened_shape) cell_shape_ = reformulated_cell_shape(tensor);
  }

  void collect(std::size_t chunk, const Box& wanted, std::vector<Region>& out) const {
    out.clear();
    if (tensor_.flattened_shape) return collect_reformulated(chunk, wanted, out);
    const ShapeView offsets = tensor_.chunks.offsets(chunk);
    const ShapeView sizes = tensor_.chunks.sizes(chunk);
    if (!overlaps(wanted, offsets, sizes)) return;
    out.push_back({{to_shape(offsets), to_shape(sizes)}, {0, row_major_strides(sizes)}});
  }

 private:
  /// A chunk of a reformulated tensor holds the same flat range of one or (if some tool merged them) several cells of the grid.
  void collect_reformulated(std::size_t chunk, const Box& wanted, std::vector<Region>& out) const {
    const ShapeView offsets = tensor_.chunks.offsets(chunk);
    const ShapeView sizes = tensor_.chunks.sizes(chunk);
    const std::size_t dims = cell_shape_.size();
    const std::int64_t begin = offsets[dims];
    const std::int64_t length = sizes[dims];
    if (length == 0) return;
    // Only the cells that the wanted box touches: their coordinates form a box of the grid.
    Box cells{Shape(dims), Shape(dims)};
    for (std::size_t axis = 0; axis < dims; ++axis) {
      const std::int64_t cell = cell_shape_[axis];
      if (cell == 0 || wanted.sizes[axis] == 0) return;
      cells.offsets[axis] = wanted.offsets[axis] / cell;
      cells.sizes[axis] = (wanted.offsets[axis] + wanted.sizes[axis] - 1) / cell + 1 - cells.offsets[axis];
    }
    const Box stored{Shape(offsets.begin(), offsets.begin() + static_cast<std::ptrdiff_t>(dims)), Shape(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(dims))};
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
      append_range(outer, begin, begin + length, at, out);
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

  const TensorMetadata& tensor_;
  Shape cell_shape_;
};

StridedView shifted(const Region& region, const Box& part) {
  StridedView view = region.view;
  for (std::size_t axis = 0; axis < part.dims(); ++axis) view.offset += (part.offsets[axis] - region.box.offsets[axis]) * view.strides[axis];
  return view;
}

}  // namespace

std::vector<ReadItem> plan_reads(const Metadata& metadata, std::span<const WantedShard> wanted) {
  std::vector<ReadItem> items;
  std::vector<Region> sources;
  for (const WantedShard& shard : wanted) {
    const TensorMetadata& tensor = metadata.tensors[shard.tensor];
    if (!is_valid(shard.box) || shard.box.dims() != tensor.global_shape().size() || (!shard.clip && !fits(shard.box, tensor.global_shape()))) {
      throw CheckpointError(ErrorCode::kMismatch, "the part " + to_string(shard.box) + " is wanted of a tensor of shape " + to_string(tensor.global_shape()),
                            {.key = tensor.key});
    }
    const ChunkRegions chunk_regions(tensor);
    const std::vector<Region> targets = target_regions(shard);
    for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
      chunk_regions.collect(chunk, shard.box, sources);
      for (const Region& source : sources) {
        for (const Region& target : targets) {
          const auto common = intersect(source.box, target.box);
          if (!common) continue;
          items.push_back({shard.tensor, static_cast<std::uint32_t>(chunk), shard.destination, common->sizes, shifted(source, *common), shifted(target, *common)});
        }
      }
    }
  }
  return items;
}

}  // namespace dckpt
