#include "mapping/geometry/layout.h"

#include <algorithm>
#include <numeric>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

/// Consecutive indices along one tensor dim: `global` in the whole tensor, `local` in the part that
/// a rank holds.
struct Run {
  std::int64_t global = 0;
  std::int64_t local = 0;
  std::int64_t size = 0;
};

/// The indices that a rank holds along one tensor dim: runs that are not empty and do not touch,
/// rising in both numberings, without gaps in the local one.
using Runs = std::vector<Run>;

Runs all_of_axis(std::int64_t extent) {
  return extent == 0 ? Runs{} : Runs{{0, 0, extent}};
}

std::int64_t total(const Runs& runs) {
  return runs.empty() ? 0 : runs.back().local + runs.back().size;
}

void append(Runs& runs, std::int64_t global, std::int64_t size) {
  if (!runs.empty() && runs.back().global + runs.back().size == global) {
    runs.back().size += size;
  } else {
    runs.push_back({global, total(runs), size});
  }
}

/// Appends the part [begin, end) of `from`'s local numbering.
void append_range(Runs& runs, const Runs& from, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  auto run = std::partition_point(from.begin(), from.end(),
                                  [&](const Run& r) { return r.local + r.size <= begin; });
  for (; run != from.end() && run->local < end; ++run) {
    const std::int64_t first = std::max(begin, run->local);
    append(runs, run->global + (first - run->local), std::min(end, run->local + run->size) - first);
  }
}

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

std::int64_t chunk_size(std::int64_t extent, std::int64_t count) {
  return extent / count + (extent % count != 0 ? 1 : 0);
}

/// Returns chunk `index` of `count` as torch.chunk cuts them: all as large as the first, except
/// that the last ones may be shorter or empty.
Range chunk(Range whole, std::int64_t count, std::int64_t index) {
  const std::int64_t step = chunk_size(whole.size(), count);
  if (step == 0 || index > whole.size() / step) return {whole.end, whole.end};
  const std::int64_t begin = whole.begin + index * step;
  return {begin, begin + std::min(step, whole.end - begin)};
}

/// Returns the part of `runs` that rank `index` of `count` keeps under a strided shard; a plain one
/// has split factor 1.
Runs cut(const Runs& runs, std::int64_t split_factor, std::int64_t count, std::int64_t index) {
  if (runs.empty() || count == 1) return runs;
  const Range all{0, total(runs)};
  const std::int64_t outer_size = chunk_size(all.size(), split_factor);
  const std::int64_t outer_count =
      chunk_size(all.size(), outer_size);  // only those that are not empty
  if (outer_count > static_cast<std::int64_t>(kMaxPieces)) {
    throw_error(ErrorCode::kInvalidArgument,
                "a strided shard with split factor {} cuts an extent of {} into more than the "
                "{} pieces that a rank can hold",
                split_factor, all.size(), kMaxPieces);
  }
  Runs kept;
  for (std::int64_t outer = 0; outer < outer_count; ++outer) {
    const Range part = chunk(chunk(all, split_factor, outer), count, index);
    append_range(kept, runs, part.begin, part.end);
  }
  return kept;
}

/// A cut along a tensor dim by a mesh dimension.
struct Cut {
  std::size_t dim = 0;
  std::int64_t split_factor = 1;
};

std::size_t checked_dim(std::int64_t dim, ShapeView shape, const MeshLayout& layout) {
  const auto dims = static_cast<std::int64_t>(shape.size());
  if (dim < -dims || dim >= dims) {
    throw_error(ErrorCode::kInvalidArgument,
                "a tensor of shape {} has no dim {} to shard; its layout is {}", to_string(shape),
                dim, to_string(layout));
  }
  return static_cast<std::size_t>(dim < 0 ? dim + dims : dim);
}

/// Returns the cut by a mesh dimension; empty if it replicates.
std::optional<Cut> cut_of(const MeshLayout& layout, std::size_t mesh_dim, ShapeView shape) {
  const Placement& placement = layout.placements[mesh_dim];
  if (std::holds_alternative<Partial>(placement)) {
    throw_error(
        ErrorCode::kInvalidArgument,
        "the tensor is partial along mesh dimension {} of its layout {}: each rank there holds a "
        "term of a sum. Reduce it first (torch: redistribute to Replicate or Shard)",
        mesh_dim, to_string(layout));
  }
  if (const auto* const shard = std::get_if<Shard>(&placement))
    return Cut{checked_dim(shard->dim, shape, layout), 1};
  if (const auto* const shard = std::get_if<StridedShard>(&placement)) {
    if (shard->split_factor < 1)
      throw_error(ErrorCode::kInvalidArgument,
                  "a strided shard needs a split factor of at least 1, got " + to_string(layout));
    return Cut{checked_dim(shard->dim, shape, layout), shard->split_factor};
  }
  return std::nullopt;
}

std::vector<std::optional<Cut>> cuts_of(const MeshLayout& layout, ShapeView shape) {
  if (layout.placements.size() != layout.mesh.dims())
    throw_error(ErrorCode::kInvalidArgument,
                "a layout needs one placement per mesh dimension, got " + to_string(layout));
  std::vector<std::optional<Cut>> cuts;
  for (std::size_t mesh_dim = 0; mesh_dim < layout.mesh.dims(); ++mesh_dim)
    cuts.push_back(cut_of(layout, mesh_dim, shape));
  return cuts;
}

std::vector<std::size_t> order_of(const MeshLayout& layout) {
  std::vector<std::size_t> left_to_right(layout.mesh.dims());
  std::iota(left_to_right.begin(), left_to_right.end(), std::size_t{0});
  if (layout.order.empty()) return left_to_right;
  if (!std::is_permutation(layout.order.begin(), layout.order.end(), left_to_right.begin(),
                           left_to_right.end())) {
    throw_error(ErrorCode::kInvalidArgument,
                "the order in which a layout cuts must name each of the {} mesh dimensions once",
                layout.mesh.dims());
  }
  return layout.order;
}

/// Returns all combinations of one run per axis, the last axis fastest.
std::vector<LocalPiece> pieces_of(const std::vector<Runs>& axes, ShapeView global_shape,
                                  ShapeView local_shape) {
  LocalPiece piece{{Shape(axes.size(), 0), Shape(local_shape)}, Shape(axes.size(), 0)};
  if (numel(local_shape) == 0) {
    for (std::size_t axis = 0; axis < axes.size(); ++axis)
      piece.box.offsets[axis] = axes[axis].empty() ? global_shape[axis] : axes[axis].front().global;
    return {piece};
  }
  std::size_t count = 1;
  for (const Runs& runs : axes) {
    if (runs.size() > kMaxPieces / count) {
      throw_error(ErrorCode::kInvalidArgument,
                  "a layout gives a rank more than {} pieces of a tensor of shape {}", kMaxPieces,
                  to_string(global_shape));
    }
    count *= runs.size();
  }
  std::vector<LocalPiece> pieces;
  pieces.reserve(count);
  for (std::size_t number = 0; number < count; ++number) {
    std::size_t rest = number;
    for (std::size_t axis = axes.size(); axis-- > 0;) {
      const Run& run = axes[axis][rest % axes[axis].size()];
      rest /= axes[axis].size();
      piece.box.offsets[axis] = run.global;
      piece.box.sizes[axis] = run.size;
      piece.local_offsets[axis] = run.local;
    }
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace

DeviceMesh::DeviceMesh(Shape shape, std::vector<int> ranks)
    : shape_(std::move(shape)), ranks_(std::move(ranks)) {
  const bool positive =
      std::all_of(shape_.begin(), shape_.end(), [](std::int64_t extent) { return extent >= 1; });
  const auto count = checked_numel(shape_);
  if (shape_.size() > kMaxDims || !positive || !count || *count > kMaxMeshRanks) {
    throw_error(ErrorCode::kInvalidArgument,
                "a device mesh needs extents of at least 1, at most {} dimensions and at most "
                "{} ranks, got {}",
                kMaxDims, kMaxMeshRanks, to_string(ShapeView(shape_)));
  }
  if (ranks_.empty()) return;
  if (ranks_.size() != static_cast<std::size_t>(*count)) {
    throw_error(ErrorCode::kInvalidArgument, "a {} mesh needs {} ranks, got {}",
                to_string(ShapeView(shape_)), *count, ranks_.size());
  }
  std::vector<int> sorted = ranks_;
  std::sort(sorted.begin(), sorted.end());
  if (sorted.front() < 0)
    throw_error(ErrorCode::kInvalidArgument,
                "a device mesh cannot hold rank " + std::to_string(sorted.front()));
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    throw_error(ErrorCode::kInvalidArgument, "rank {} appears twice on a device mesh", *twice);
}

std::optional<Shape> DeviceMesh::coordinate_of(int rank) const {
  std::int64_t position = rank;
  if (!ranks_.empty()) position = std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin();
  if (position < 0 || position >= size()) return std::nullopt;
  Shape coordinate(dims());
  for (std::size_t axis = dims(); axis-- > 0;) {
    coordinate[axis] = position % shape_[axis];
    position /= shape_[axis];
  }
  return coordinate;
}

std::string to_string(const Placement& placement) {
  if (std::holds_alternative<Partial>(placement)) return "P";
  if (const auto* const shard = std::get_if<Shard>(&placement))
    return str_format("S({})", shard->dim);
  if (const auto* const shard = std::get_if<StridedShard>(&placement)) {
    return str_format("_S({}, {})", shard->dim, shard->split_factor);
  }
  return "R";
}

std::string to_string(const MeshLayout& layout) {
  std::string out = "[";
  for (const Placement& placement : layout.placements)
    out += (out.size() > 1 ? ", " : "") + to_string(placement);
  return str_format("{}] on a {} mesh", out, to_string(ShapeView(layout.mesh.shape())));
}

std::optional<LocalPart> local_part(const MeshLayout& layout, ShapeView global_shape, int rank) {
  const auto elements =
      global_shape.size() <= kMaxDims ? checked_numel(global_shape) : std::nullopt;
  if (!elements)
    throw_error(ErrorCode::kInvalidArgument,
                "a tensor of shape {} is negative, has too many axes or does not fit in 64 bits",
                to_string(global_shape));
  const std::vector<std::optional<Cut>> cuts = cuts_of(layout, global_shape);
  const std::vector<std::size_t> order = order_of(layout);
  const auto coordinate = layout.mesh.coordinate_of(rank);
  if (!coordinate) return std::nullopt;

  std::vector<Runs> axes;
  for (const std::int64_t extent : global_shape) axes.push_back(all_of_axis(extent));
  for (const std::size_t mesh_dim : order) {
    if (!cuts[mesh_dim]) continue;
    const auto [dim, split_factor] = *cuts[mesh_dim];
    axes[dim] =
        cut(axes[dim], split_factor, layout.mesh.shape()[mesh_dim], (*coordinate)[mesh_dim]);
  }

  LocalPart part;
  for (const Runs& runs : axes) part.shape.push_back(total(runs));
  part.pieces = pieces_of(axes, global_shape, part.shape);
  for (std::size_t mesh_dim = 0; mesh_dim < cuts.size(); ++mesh_dim) {
    if (*elements == 0 || !cuts[mesh_dim])
      part.replica = part.replica * layout.mesh.shape()[mesh_dim] + (*coordinate)[mesh_dim];
  }
  return part;
}

}  // namespace dckpt
