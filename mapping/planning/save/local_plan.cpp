#include "mapping/planning/save/local_plan.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "mapping/geometry/flat_range.h"
#include "mapping/planning/reformulation.h"

namespace dckpt {
namespace {

std::uint64_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::uint64_t>(elements) * item_size(dtype);
}

WriteItem chunk_item(const TensorShard& shard, Box chunk, std::int64_t source_begin) {
  WriteItem item;
  item.key = shard.key;
  item.main_replica = shard.main_replica;
  item.source = shard.source;
  item.source_begin = source_begin;
  item.nbytes = bytes_of(numel(chunk.sizes), shard.properties.dtype);
  item.properties = shard.properties;
  item.size = shard.global_shape;
  item.chunk = std::move(chunk);
  item.flattened = shard.range.has_value();
  return item;
}

void append_boxes(const TensorShard& shard, SavePlan& plan) {
  if (shard.range->begin == shard.range->end && shard.box.dims() > 0)
    plan.push_back(chunk_item(shard, {shard.box.offsets, Shape(shard.box.dims(), 0)}, 0));
  for (FlatPiece& piece : split_flat_range(shard.box.sizes, shard.range->begin, shard.range->end)) {
    for (std::size_t axis = 0; axis < shard.box.dims(); ++axis)
      piece.box.offsets[axis] += shard.box.offsets[axis];
    plan.push_back(chunk_item(shard, std::move(piece.box), piece.begin - shard.range->begin));
  }
}

void append_reformulated(const TensorShard& shard, SavePlan& plan) {
  if (!shard.fragmentation) {
    throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                "a flattened range of an irregular grid cannot be stored in Megatron's "
                "form; use the form 'boxes', or shards of equal shape");
  }
  const Shape& grid = *shard.fragmentation;
  Box chunk;
  for (std::size_t axis = 0; axis < grid.size(); ++axis) {
    const std::int64_t cell = grid[axis] > 0 && shard.global_shape[axis] % grid[axis] == 0
                                  ? shard.global_shape[axis] / grid[axis]
                                  : -1;
    if (cell != shard.box.sizes[axis] || cell == 0 || shard.box.offsets[axis] % cell != 0) {
      throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
                  "the grid {} does not cut a tensor of shape {} into pieces like {}",
                  to_string(grid), to_string(shard.global_shape), to_string(shard.box));
    }
    chunk.offsets.push_back(shard.box.offsets[axis] / cell);
    chunk.sizes.push_back(1);
  }
  chunk.offsets.push_back(shard.range->begin);
  chunk.sizes.push_back(shard.range->end - shard.range->begin);
  WriteItem item = chunk_item(shard, std::move(chunk), 0);
  item.size = reformulated_size(shard.global_shape, grid);
  item.flattened_shape = shard.global_shape;
  plan.push_back(std::move(item));
}

WriteItem object_item(const ObjectShard& shard) {
  WriteItem item;
  item.kind = WriteItem::Kind::kObject;
  item.key = shard.key;
  item.main_replica = shard.main_replica;
  item.source = shard.source;
  item.nbytes = shard.nbytes;
  item.grid_key = shard.grid_key;
  item.size = shard.grid;
  item.chunk = {shard.cell, Shape(shard.cell.size(), 1)};
  return item;
}

}  // namespace

SavePlan plan_local_save(std::span<const LocalShard> shards, FlattenedForm form) {
  SavePlan plan;
  plan.reserve(shards.size());
  for (const LocalShard& local : shards) {
    if (const auto* const object = std::get_if<ObjectShard>(&local)) {
      plan.push_back(object_item(*object));
      continue;
    }
    const TensorShard& shard = std::get<TensorShard>(local);
    if (shard.range) {
      form == FlattenedForm::kBoxes ? append_boxes(shard, plan) : append_reformulated(shard, plan);
    } else {
      plan.push_back(chunk_item(shard, shard.box, 0));
    }
  }
  return plan;
}

}  // namespace dckpt
