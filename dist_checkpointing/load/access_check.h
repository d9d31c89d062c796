#pragma once

#include "mapping/planning/planner_options.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/parallel/load_planner.h"

namespace dckpt {

/// That the shards which all ranks ask for cover each key exactly, tensors and objects: under
/// Megatron's rule the main replicas, under the other kinds any holders. `sharded` has sharded
/// leaves only. Collective; throws the same CheckpointError (mismatch) on all ranks, in Megatron's
/// words, with a table of which rank holds what. Ranks that ask for the same as last time, which
/// `planner` (may be null) remembers, exchange one number.
void check_access(const Value& sharded, PlannerKind kind, Communicator& comm,
                  LoadPlanner* planner = nullptr);

}  // namespace dckpt
