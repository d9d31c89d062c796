#pragma once

#include <map>
#include <optional>
#include <span>

#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/forwarding_reader.h"

namespace dckpt {

/// A checkpoint whose flattened tensors have lost their own shapes: torch drops `mcore_data` when
/// it saves again a tensor that Megatron has flattened, so (8, 15) in four pieces is a tensor of
/// (2, 2, 30). A request for a flattened range tells the original shape.
class RequestedShapes final : public ForwardingReader {
 public:
  using ForwardingReader::ForwardingReader;

  const Metadata& metadata() const noexcept override {
    return metadata_ ? *metadata_ : source_->metadata();
  }
  Value object(std::size_t object) const override { return source_->object(object); }

  /// Takes the shapes of those flattened ranges among `tensors` that the stored data allows.
  void take(std::span<const ShardedTensor* const> tensors, const StoredKeys& keys);
  /// Also takes the shapes of the other ranks, since ranks read for each other. Collective.
  void exchange(Communicator& comm);

 private:
  void set(std::size_t tensor, const Shape& shape);

  std::optional<Metadata> metadata_;
  std::map<std::size_t, Shape> taken_;  // by position
};

}  // namespace dckpt
