#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/load_watch.h"
#include "dist_checkpointing/load/planned_load.h"
#include "dist_checkpointing/load/requested_shapes.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/base/phase_clock.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"
#include "strategies/parallel/load_plan_cache.h"

namespace dckpt {

/// What sharded and local leaves are after a load.
enum class Leaves : std::uint8_t {
  kDescribed,  ///< what they were, with data: the tree can be saved and loaded again
  kPlain,      ///< tensors and values, as Megatron returns them
};

/// A running load: what both kinds of loaders work with.
struct LoadContext {
  const CheckpointReader& reader;
  const StoredKeys& keys;
  const LoadOptions& options;
  Communicator& comm;
  LoadReport& report;
  LoadWatch& watch;
  LoadPlanCache& plan_cache;
  Leaves leaves = Leaves::kDescribed;
  PhaseClock& phases;
  std::optional<PhaseClock::Scope>& opening;  ///< Phase::kOpen, until tensor bytes move
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  /// Of each stored tensor, by position: 1 if this rank requests it. Null if nobody wants to know.
  std::vector<std::int64_t>* requested = nullptr;
  RequestedShapes* shapes = nullptr;  ///< of `reader`
  PlannedLoad* planned = nullptr;     ///< by a planner of the registry
};

/// Loads as Megatron does: sharded leaves by their keys, wherever they are in the state; everything
/// that is neither sharded nor local comes from `common`. Collective.
void load_megatron(const LoadContext& load, Value common, StateDict& state);

/// Loads as PyTorch DCP does: every leaf by its path, sharded ones by their keys. Collective.
void load_dcp(const LoadContext& load, StateDict& state);

}  // namespace dckpt
