#include "dist_checkpointing/load/requested_shapes.h"

#include <algorithm>

#include "mapping/base/wire_fields.h"
#include "mapping/planning/reformulation.h"

namespace dckpt {
namespace {

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
  for (const Bytes& theirs : comm.all_gather(message_of(taken_))) {
    WireReader reader(theirs, "the shapes that a rank requests");
    std::map<std::size_t, Shape> shapes;
    read_value(reader, shapes);
    reader.finish();
    for (const auto& [tensor, shape] : shapes) {
      if (tensor >= source_->metadata().tensors.size())
        reader.malformed("it has the shape of a tensor that is not stored");
      set(tensor, shape);
    }
  }
}

}  // namespace dckpt
