#include "mapping/planning/save/assigned_item.h"

namespace dckpt {

std::optional<std::size_t> cut_axis(ShapeView sizes) noexcept {
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] != 1) return axis;
  }
  return std::nullopt;
}

Box piece_of(const Box& chunk, std::int64_t begin, std::int64_t end) {
  Box piece = chunk;
  if (const auto axis = cut_axis(chunk.sizes); axis && end != 0) {
    piece.offsets[*axis] += begin;
    piece.sizes[*axis] = end - begin;
  }
  return piece;
}

SavePlan final_plan(const SavePlan& local, std::span<const AssignedItem> items) {
  SavePlan plan;
  plan.reserve(items.size());
  for (const AssignedItem& assigned : items) {
    WriteItem item = local[assigned.item];
    if (const auto axis = cut_axis(item.chunk.sizes); assigned.end != 0 && axis) {
      const std::int64_t row = numel(item.chunk.sizes) / item.chunk.sizes[*axis];
      item.source_begin += assigned.begin * row;
      item.chunk = piece_of(item.chunk, assigned.begin, assigned.end);
      item.nbytes =
          static_cast<std::uint64_t>(numel(item.chunk.sizes)) * item_size(item.properties.dtype);
    }
    plan.push_back(std::move(item));
  }
  return plan;
}

}  // namespace dckpt
