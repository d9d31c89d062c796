#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "configs/options.h"
#include "dist_checkpointing/load/load_watch.h"
#include "dist_checkpointing/load/loaders.h"
#include "dist_checkpointing/load/planned_load.h"
#include "dist_checkpointing/load/tensor_request.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"
#include "strategies/parallel/load_plan_cache.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// Fills the destinations of a request; the only place where a load moves tensor bytes. Collective;
/// throws the same CheckpointError on all ranks, leaving destinations partly filled. `cache`
/// and `phases` may be null; so may `planned`, to which destinations may belong.
ReadStats fill_destinations(const CheckpointReader& reader, const TensorRequest& request,
                            const LoadOptions& options, Communicator& comm, LoadWatch& watch,
                            LoadPlanCache* cache = nullptr, PhaseClock* phases = nullptr,
                            PlannedLoad* planned = nullptr);

/// The same for a running load, with what it reports. Collective.
void fill_destinations(const LoadContext& load, const TensorRequest& request);

/// The values of objects by their positions in the metadata; the only place where a load reads
/// objects. Collective too.
std::unordered_map<std::uint32_t, Value> fetch_objects(const CheckpointReader& reader,
                                                       std::span<const std::uint32_t> objects,
                                                       const LoadOptions& options,
                                                       Communicator& comm, LoadWatch& watch,
                                                       PhaseClock* phases = nullptr);
std::unordered_map<std::uint32_t, Value> fetch_objects(const LoadContext& load,
                                                       std::span<const std::uint32_t> objects);

}  // namespace dckpt
