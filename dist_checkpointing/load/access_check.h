#pragma once

#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/planner/shard_spec.h"
#include "mapping/planning/planner_options.h"

namespace dckpt {

/// Checks that the requested shards of all ranks cover each key exactly, for tensors and objects:
/// the main replicas under Megatron's rule, any holders under the other kinds. Collective; throws
/// the same CheckpointError (mismatch) on all ranks, in Megatron's words, with a table of which
/// rank holds what. Ranks whose requests are unchanged since the last load, according to the plan
/// cache, exchange one number. Does nothing if load.validate_access_integrity is off.
void check_access(LoadCall& load, const ShardedLeaves& leaves, PlannerKind kind);

}  // namespace dckpt
