#pragma once

#include "mapping/planning/planner_options.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/parallel/load_plan_cache.h"

namespace dckpt {

/// Checks that the requested shards of all ranks cover each key exactly, for tensors and objects:
/// under Megatron's rule the main replicas, under the other kinds any holders. `sharded` has only
/// sharded leaves. Collective; throws the same CheckpointError (mismatch) on all ranks, in
/// Megatron's words, with a table of which rank holds what. Ranks that request the same as last
/// time, as remembered by `cache` (may be null), exchange one number.
void check_access(const Value& sharded, PlannerKind kind, Communicator& comm,
                  LoadPlanCache* cache = nullptr);

}  // namespace dckpt
