#include "dist_checkpointing/load/requested_shapes.h"

#include <algorithm>

#include "mapping/base/wire.h"
#include "mapping/planning/reformulation.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxAxes = 64;

bool may_have_lost_its_shape(const TensorStorageMetadata& tensor) {
  return !tensor.flattened_shape && tensor.size.size() > 1;
}

}  // namespace

void RequestedShapes::set(std::size_t tensor, const Shape& shape) {
  const TensorStorageMetadata& stored = metadata().tensors.at(tensor);
  if (!may_have_lost_its_shape(stored) || !may_be_reformulated(stored.size, shape)) return;
  if (!metadata_) metadata_ = source_->metadata();
  metadata_->tensors[tensor].flattened_shape = shape;
}

void RequestedShapes::take(std::span<const ShardedTensor* const> tensors, const StoredKeys& keys) {
  for (const ShardedTensor* const tensor : tensors) {
    if (!tensor->flattened_range) continue;
    const auto stored = keys.tensor(tensor->key);
    if (!stored || !may_have_lost_its_shape(metadata().tensors[*stored])) continue;
    taken_.emplace(*stored, tensor->global_shape);
    set(*stored, tensor->global_shape);
  }
}

void RequestedShapes::exchange(Communicator& comm) {
  if (comm.size() == 1 ||
      std::ranges::none_of(source_->metadata().tensors, may_have_lost_its_shape))
    return;
  Bytes mine;
  WireWriter writer(mine);
  writer.number(taken_.size());
  for (const auto& [tensor, shape] : taken_) {
    writer.number(tensor);
    writer.number(shape.size());
    for (const std::int64_t extent : shape) writer.number(static_cast<std::uint64_t>(extent));
  }
  for (const Bytes& theirs : comm.all_gather(mine)) {
    WireReader reader(theirs, "the shapes that a rank requests");
    for (std::size_t left = reader.count(); left > 0; --left) {
      const auto tensor = reader.number(source_->metadata().tensors.size() - 1);
      Shape shape(static_cast<std::size_t>(reader.number(kMaxAxes)));
      for (std::int64_t& extent : shape)
        extent = static_cast<std::int64_t>(reader.number(INT64_MAX));
      set(static_cast<std::size_t>(tensor), shape);
    }
    reader.finish();
  }
}

}  // namespace dckpt
