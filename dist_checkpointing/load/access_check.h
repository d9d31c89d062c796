#pragma once

#include "dist_checkpointing/load/load_steps.h"
#include "mapping/planning/planner_options.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Checks that the requested shards of all ranks cover each key exactly, for tensors and objects:
/// under Megatron's rule the main replicas, under the other kinds any holders. `sharded` has only
/// sharded leaves. Collective; throws the same CheckpointError (mismatch) on all ranks, in
/// Megatron's words, with a table of which rank holds what. Ranks that request the same as last
/// time, as the plan cache remembers, exchange one number. Does nothing if
/// load.validate_access_integrity is off.
void check_access(LoadCall& load, const Value& sharded, PlannerKind kind);

}  // namespace dckpt
