#include "mapping/state/sharded_tensor.h"

#include <algorithm>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

std::string offsets_text(std::span<const RankOffset> offsets) {
  std::string out = "(";
  for (const RankOffset& offset : offsets) {
    if (out.size() > 1) out += ", ";
    out += dckpt::to_string(Shape{offset.axis, offset.rank, offset.count});
  }
  return out + (offsets.size() == 1 ? ",)" : ")");
}

/// Describes a regular piece without its data.
ShardedTensor describe(std::string key, DType dtype, Shape local_shape,
                       std::span<const RankOffset> rank_offsets, ShardedTensorOptions options) {
  const std::int64_t prepended = options.prepend_axis_num;
  if (prepended < 0 || local_shape.size() + static_cast<std::size_t>(prepended) > kMaxDims) {
    throw_error(
        ErrorCode::kInvalidArgument, {.key = key},
        "{} prepended axes on a tensor of shape {} are not possible (limit: {} axes in all)",
        prepended, to_string(local_shape), kMaxDims);
  }
  Shape extents(static_cast<std::size_t>(prepended), 1);
  extents.insert(extents.end(), local_shape.begin(), local_shape.end());
  ShardedTensor shard{.key = std::move(key),
                      .dtype = dtype,
                      .local_shape = std::move(local_shape),
                      .global_shape = extents,
                      .global_offset = Shape(extents.size(), 0),
                      .axis_fragmentations = Shape(extents.size(), 1),
                      .replica_id = std::move(options.replica_id),
                      .prepend_axis_num = prepended,
                      .allow_shape_mismatch = options.allow_shape_mismatch};
  for (const auto& [axis, rank, count] : rank_offsets) {
    if (axis < 0 || axis >= static_cast<std::int64_t>(extents.size()) || rank < 0 || count < 1 ||
        rank >= count) {
      throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                  "Invalid rank offsets: {} for key {}.", offsets_text(rank_offsets),
                  printable(shard.key));
    }
    const auto at = static_cast<std::size_t>(axis);
    const auto global = checked_mul(extents[at], count);
    if (!global)
      throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                  "the global shape of {} does not fit in 64 bits along axis {}", quote(shard.key),
                  axis);
    shard.global_shape[at] = *global;
    shard.global_offset[at] = rank * extents[at];
    (*shard.axis_fragmentations)[at] = count;
  }
  return shard;
}

/// Returns the numbers of pieces per axis if the piece is on a regular grid.
std::optional<Shape> regular_grid(const ShardedTensor& shard) {
  const Box box = shard.global_box();
  Shape pieces(box.dims(), 1);
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    const std::int64_t size = box.sizes[axis];
    const std::int64_t global = shard.global_shape[axis];
    if (size == 0 && global == 0) continue;
    if (size == 0 || global % size != 0 || box.offsets[axis] % size != 0) return std::nullopt;
    pieces[axis] = global / size;
  }
  return pieces;
}

ShardedTensor placed(std::string key, Tensor data, Shape local_shape, Shape global_shape,
                     Shape global_offset, std::optional<FlattenedRange> range,
                     ShardedTensorOptions options) {
  const DType dtype = data.dtype();
  ShardedTensor shard{.key = std::move(key),
                      .data = std::move(data),
                      .dtype = dtype,
                      .local_shape = std::move(local_shape),
                      .global_shape = std::move(global_shape),
                      .global_offset = std::move(global_offset),
                      .replica_id = std::move(options.replica_id),
                      .prepend_axis_num = options.prepend_axis_num,
                      .allow_shape_mismatch = options.allow_shape_mismatch,
                      .flattened_range = range};
  shard.validate();
  shard.axis_fragmentations = regular_grid(shard);
  return shard;
}

void check_data(const ShardedTensor& shard) {
  if (!shard.data) return;
  const Tensor& data = *shard.data;
  if (data.dtype() != shard.dtype)
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "Data dtype should match `dtype` attribute for {}, but is {}", to_string(shard),
                to_string(data.dtype()));
  if (!shard.flattened_range) {
    if (data.shape() != shard.local_shape)
      throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                  "Data shape should match `local_shape` attribute for {}, but is {}",
                  to_string(shard), to_string(data.shape()));
    return;
  }
  if (data.dim() != 1) {
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "Data should be 1D for a flattened {}, but has the shape {}", to_string(shard),
                to_string(data.shape()));
  }
  if (data.shape() != shard.data_shape()) {
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "Data shape {} doesnt match expected {} for {}", to_string(data.shape()),
                to_string(shard.data_shape()), to_string(shard));
  }
}

void check_range(const ShardedTensor& shard) {
  if (!shard.flattened_range) return;
  const auto [begin, end] = *shard.flattened_range;
  if (begin < 0 || end < begin || end > numel(shard.local_shape)) {
    throw_error(
        ErrorCode::kInvalidArgument, {.key = shard.key},
        "The flattened range [{}, {}) is not inside the {} elements of the local tensor for {}",
        begin, end, numel(shard.local_shape), to_string(shard));
  }
}

void check_shapes(const ShardedTensor& shard) {
  const bool sound = shard.local_shape.size() <= kMaxDims &&
                     shard.global_shape.size() <= kMaxDims && checked_numel(shard.local_shape) &&
                     checked_numel(shard.global_shape);
  if (!sound) {
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "the shapes of {} are negative, have more than {} axes or do not fit in 64 bits",
                to_string(shard), kMaxDims);
  }
}

void check_place(const ShardedTensor& shard) {
  if (shard.global_shape.size() != shard.global_offset.size()) {
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "Global offset dimensions should be equal to global shape dimensions for " +
                    to_string(shard));
  }
  const auto dims = static_cast<std::int64_t>(shard.global_shape.size());
  if (shard.prepend_axis_num < 0 || shard.prepend_axis_num > dims ||
      static_cast<std::int64_t>(shard.local_shape.size()) + shard.prepend_axis_num != dims) {
    throw_error(
        ErrorCode::kInvalidArgument, {.key = shard.key},
        "Local shape together with `prepend_axis_num` dimensions should be equal to global shape "
        "dimensions for " +
            to_string(shard));
  }
  if (!fits(shard.global_box(), shard.global_shape))
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "The local tensor does not lie inside the global one for " + to_string(shard));
}

void check_grid(const ShardedTensor& shard) {
  if (!shard.axis_fragmentations) return;
  const Shape& pieces = *shard.axis_fragmentations;
  const bool sound =
      pieces.size() == shard.global_shape.size() &&
      std::all_of(pieces.begin(), pieces.end(), [](std::int64_t count) { return count >= 1; });
  if (!sound)
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "`axis_fragmentations` {} should hold a positive number for each global axis "
                "for {}",
                to_string(pieces), to_string(shard));
  const Box box = shard.global_box();
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    const std::int64_t offset = box.offsets[axis];
    const std::int64_t size = box.sizes[axis];
    if (size == 0) continue;
    if (offset % size != 0) {
      throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                  "Global offset ({}) must be divisible by local shape ({}) for {}.", offset, size,
                  to_string(shard));
    }
    if (offset / size >= pieces[axis]) {
      throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                  "Piece {} of axis {} is beyond the {} pieces of `axis_fragmentations` for {}",
                  offset / size, axis, pieces[axis], to_string(shard));
    }
  }
}

}  // namespace

bool ReplicaId::is_main() const noexcept {
  return std::all_of(parts_.begin(), parts_.end(), [](std::int64_t part) { return part == 0; });
}

std::string to_string(const ReplicaId& id) {
  return id.is_tuple() ? to_string(id.parts()) : std::to_string(id.parts()[0]);
}

ShardedTensor ShardedTensor::from_rank_offsets(std::string key, Tensor data,
                                               std::span<const RankOffset> rank_offsets,
                                               Options options) {
  ShardedTensor shard =
      describe(std::move(key), data.dtype(), data.shape(), rank_offsets, std::move(options));
  shard.data = std::move(data);
  shard.validate();
  return shard;
}

ShardedTensor ShardedTensor::from_rank_offsets(std::string key, Tensor data,
                                               std::initializer_list<RankOffset> rank_offsets,
                                               Options options) {
  return from_rank_offsets(std::move(key), std::move(data),
                           std::span(rank_offsets.begin(), rank_offsets.size()),
                           std::move(options));
}

ShardedTensor ShardedTensor::from_rank_offsets_flat(std::string key, Tensor data, Shape local_shape,
                                                    std::span<const RankOffset> rank_offsets,
                                                    FlattenedRange range, Options options) {
  if (data.dim() != 1)
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "Flattened ShardedTensor requires 1D data, got shape: " + to_string(data.shape()));
  const auto length = range.begin < 0 || range.end < range.begin ? -1 : range.end - range.begin;
  if (length != data.numel()) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "Flattened ShardedTensor data length ({}) must meet the slice length: {}",
                data.numel(), length);
  }
  ShardedTensor shard = describe(std::move(key), data.dtype(), std::move(local_shape), rank_offsets,
                                 std::move(options));
  shard.data = std::move(data);
  shard.flattened_range = range;
  shard.validate();
  return shard;
}

ShardedTensor ShardedTensor::from_rank_offsets_flat(std::string key, Tensor data, Shape local_shape,
                                                    std::initializer_list<RankOffset> rank_offsets,
                                                    FlattenedRange range, Options options) {
  return from_rank_offsets_flat(std::move(key), std::move(data), std::move(local_shape),
                                std::span(rank_offsets.begin(), rank_offsets.size()), range,
                                std::move(options));
}

ShardedTensor ShardedTensor::from_box(std::string key, Tensor data, Shape global_shape,
                                      Shape global_offset, Options options) {
  Shape local_shape = data.shape();
  return placed(std::move(key), std::move(data), std::move(local_shape), std::move(global_shape),
                std::move(global_offset), std::nullopt, std::move(options));
}

ShardedTensor ShardedTensor::from_flat_range(std::string key, Tensor data, Shape local_shape,
                                             Shape global_shape, Shape global_offset,
                                             FlattenedRange range, Options options) {
  return placed(std::move(key), std::move(data), std::move(local_shape), std::move(global_shape),
                std::move(global_offset), range, std::move(options));
}

ShardedTensor ShardedTensor::whole(std::string key, Tensor data, Options options) {
  return from_rank_offsets(std::move(key), std::move(data), std::span<const RankOffset>{},
                           std::move(options));
}

void ShardedTensor::validate() const {
  check_shapes(*this);
  check_data(*this);
  check_place(*this);
  check_range(*this);
  check_grid(*this);
}

Box ShardedTensor::global_box() const {
  Shape sizes(static_cast<std::size_t>(prepend_axis_num), 1);
  sizes.insert(sizes.end(), local_shape.begin(), local_shape.end());
  return {global_offset, std::move(sizes)};
}

Shape ShardedTensor::chunk_coordinates() const {
  if (!axis_fragmentations)
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "an irregular grid has no chunk coordinates: " + to_string(*this));
  const Box box = global_box();
  Shape coordinates(box.dims(), 0);
  for (std::size_t axis = 0; axis < box.dims(); ++axis) {
    if (box.sizes[axis] != 0) coordinates[axis] = box.offsets[axis] / box.sizes[axis];
  }
  return coordinates;
}

std::int64_t ShardedTensor::numel() const noexcept {
  return flattened_range ? flattened_range->end - flattened_range->begin
                         : dckpt::numel(local_shape);
}

Shape ShardedTensor::data_shape() const {
  return flattened_range ? Shape{numel()} : local_shape;
}

std::vector<ShardedTensor> ShardedTensor::narrow(std::int64_t axis, std::int64_t start,
                                                 std::int64_t length) const {
  if (axis < 0 || axis >= static_cast<std::int64_t>(local_shape.size()))
    throw_error(ErrorCode::kInvalidArgument, {.key = key}, "there is no axis {} to narrow in {}",
                axis, to_string(*this));
  const auto at = static_cast<std::size_t>(axis);
  const auto global_at = at + static_cast<std::size_t>(prepend_axis_num);
  const std::int64_t local = local_shape[at];
  if (start < 0 || length < 0 || start > local || length > local - start) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "cannot take {} entries from {} along axis {} of {}", length, start, axis,
                to_string(*this));
  }
  if (local == 0 || global_shape[global_at] % local != 0 || global_offset[global_at] % local != 0) {
    throw_error(
        ErrorCode::kInvalidArgument, {.key = key},
        "Only regular grid of local tensors is supported for narrowing, got: " + to_string(*this));
  }
  ShardedTensor part = *this;
  part.local_shape[at] = length;
  part.global_shape[global_at] = global_shape[global_at] / local * length;
  part.global_offset[global_at] = global_offset[global_at] / local * length;
  if (!flattened_range) {
    if (data) part.data = data->narrow(at, start, length);
    return {std::move(part)};
  }
  // These are Megatron's own words.
  if (axis != 0)
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "Narrowing along the first axis is supported for now only, got dim=" +
                    std::to_string(axis));
  // The entries kept are the elements [first, first + kept) of the flattened local tensor.
  const std::int64_t row = dckpt::numel(local_shape) / local;
  const std::int64_t first = start * row;
  const std::int64_t kept = length * row;
  if (flattened_range->end <= first || flattened_range->begin >= first + kept) return {};
  const std::int64_t begin = std::max(flattened_range->begin, first);
  const std::int64_t end = std::min(flattened_range->end, first + kept);
  part.flattened_range = {begin - first, end - first};
  if (data) part.data = data->narrow(0, begin - flattened_range->begin, end - begin);
  return {std::move(part)};
}

ShardedTensor ShardedTensor::without_data() const {
  ShardedTensor copy = *this;
  copy.data.reset();
  return copy;
}

std::string to_string(const ShardedTensor& shard) {
  std::string text = str_format("ShardedTensor {}: {} {} at {} of {}", quote(shard.key),
                                to_string(shard.dtype), to_string(shard.local_shape),
                                to_string(shard.global_offset), to_string(shard.global_shape));
  if (shard.prepend_axis_num != 0)
    text += str_format(", prepend_axis_num {}", shard.prepend_axis_num);
  if (shard.flattened_range)
    text +=
        str_format(", elements [{}, {})", shard.flattened_range->begin, shard.flattened_range->end);
  return text;
}

}  // namespace dckpt
