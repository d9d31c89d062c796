#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "configs/policy/options.h"
#include "mapping/planning/load/distribution.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/state/tensor.h"
#include "strategies/comm/communicator.h"
#include "strategies/parallel/load_plan_cache.h"
#include "strategies/parallel/located_reader.h"
#include "strategies/parallel/schedule.h"

namespace dckpt {

/// One rank's view of which ranks read and send what, and to whom, when ranks load tensors
/// together. It refers to the rank's own items by their positions, and depends only on the layout
/// of a checkpoint.
struct ExchangePlan {
  bool exchanges = true;  ///< if false, every rank reads everything it needs
  LoadDistribution distribution;
  ExchangeSchedule schedule;  ///< its messages are positions in distribution.shared
  /// The slabs that this rank reads, and the rounds in which they are packed.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> slab_rounds;
};

/// Plans a load in which every rank passes its own items and destinations. Collective; throws the
/// same CheckpointError on all ranks, for example if a destination cannot be filled. `located`
/// learns the places of the chunks that are read in pieces, unless the plan is a remembered one.
/// `cache` may be null.
std::shared_ptr<const ExchangePlan> plan_parallel_read(LocatedReader& located,
                                                       std::span<const ReadItem> items,
                                                       std::span<const Tensor> destinations,
                                                       Exchange exchange, std::uint64_t staging,
                                                       Communicator& comm, LoadPlanCache* cache);

}  // namespace dckpt
