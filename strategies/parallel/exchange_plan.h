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
#include "strategies/tensor_io/device_destinations.h"
#include "strategies/tensor_io/read_tensors.h"

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

struct ParallelReadOptions {
  Exchange exchange = Exchange::kAuto;  ///< the same on all ranks
  ReadOptions read{};
  LoadPlanCache* cache = nullptr;  ///< remembers the plan for the next load; may be null
  DeviceDestinations* devices =
      nullptr;  ///< made of the destinations, if some are in device memory
};

/// Plans a load in which every rank passes its own items and destinations. Collective; throws the
/// same CheckpointError on all ranks, for example if a destination cannot be filled. `located`
/// learns the places of the chunks that are read in pieces, unless the plan is a remembered one.
std::shared_ptr<const ExchangePlan> plan_parallel_read(LocatedReader& located,
                                                       std::span<const ReadItem> items,
                                                       std::span<const Tensor> destinations,
                                                       Communicator& comm,
                                                       const ParallelReadOptions& options);

}  // namespace dckpt
