#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"
#include "tests/support/random_layouts.h"

namespace dckpt::testing {

/// A random transfer: what each rank holds and wants. Elements that are wanted are all wrong.
struct RandomTransfer {
  struct Rank {
    StateDict from, to;
    std::vector<RandomShard> wanted;  ///< under "0", "1", … of `to`
  };
  std::vector<Rank> ranks;

  std::int64_t wrong_elements(std::size_t rank) const {
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < ranks[rank].wanted.size(); ++i) {
      const auto& shard = ranks[rank].to.at(std::to_string(i)).as_sharded_tensor();
      wrong += testing::wrong_elements(ranks[rank].wanted[i], shard.data.value());
    }
    return wrong;
  }
};

/// Returns a tensor of a rank whose bytes are all set; it has `extent` elements of memory.
using AllocateTensor =
    std::function<Tensor(std::size_t rank, DType dtype, Shape shape, Shape strides)>;

inline Tensor in_cpu_memory(std::size_t, DType dtype, Shape shape, Shape strides) {
  std::int64_t extent = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    extent += std::max<std::int64_t>(shape[axis] - 1, 0) * strides[axis];
  Tensor memory = Tensor::empty(dtype, {extent});
  std::ranges::fill(memory.bytes(), std::byte{0xA5});
  return {dtype, std::move(shape), std::move(strides), memory.data(), memory.owner()};
}

inline ShardedTensor sharded(const RandomShard& shard, Tensor data) {
  const TensorShard& spec = shard.spec;
  const ShardedTensorOptions options{
      .replica_id = spec.main_replica ? 0 : 1,
      .prepend_axis_num = static_cast<std::int64_t>(shard.prepended)};
  if (!spec.range)
    return ShardedTensor::from_box(spec.key, std::move(data), spec.global_shape, spec.box.offsets,
                                   options);
  const Shape& sizes = spec.box.sizes;
  const Shape local(sizes.begin() + static_cast<std::ptrdiff_t>(shard.prepended), sizes.end());
  return ShardedTensor::from_flat_range(spec.key, std::move(data), local, spec.global_shape,
                                        spec.box.offsets, {spec.range->begin, spec.range->end},
                                        options);
}

inline RandomTransfer random_transfer(Random& random, const AllocateTensor& allocate) {
  const std::vector<RandomTensor> tensors = random_tensors(random);
  const std::int64_t ranks = random.between(1, 5), split = random.between(1, ranks);
  const RandomLayout held = random_layout(random, tensors, ranks, 0, split, false);
  const RandomLayout wanted =
      random_layout(random, tensors, ranks, random.chance(50) ? 0 : split - 1, ranks, true);
  RandomTransfer transfer{std::vector<RandomTransfer::Rank>(static_cast<std::size_t>(ranks))};
  for (std::size_t rank = 0; rank < transfer.ranks.size(); ++rank) {
    RandomTransfer::Rank& of = transfer.ranks[rank];
    const auto tensor_of = [&](const RandomShard& shard) {
      const Shape shape = local_shape(shard);
      return allocate(rank, shard.spec.properties.dtype, shape, random_strides(random, shape));
    };
    for (std::size_t i = 0; i < held[rank].size(); ++i) {
      const Tensor tensor = tensor_of(held[rank][i]);
      tell_places(held[rank][i], tensor);
      of.from[std::to_string(i)] = sharded(held[rank][i], tensor);
    }
    of.wanted = wanted[rank];
    for (std::size_t i = 0; i < of.wanted.size(); ++i) {
      ShardedTensor shard = sharded(of.wanted[i], tensor_of(of.wanted[i]));
      if (random.chance(10)) shard.data.reset();
      of.to[std::to_string(i)] = std::move(shard);
    }
  }
  return transfer;
}

}  // namespace dckpt::testing
