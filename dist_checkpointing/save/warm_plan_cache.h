#pragma once

#include "dist_checkpointing/open/open_options.h"
#include "mapping/base/api.h"
#include "mapping/planning/save/plan_cache.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Initializes `cache` with the plans that the checkpoint `location` stores
/// (PlannerOptions::keep_plans), so that the first save of a job that resumes with the same
/// structure exchanges fingerprints instead of plans and plans nothing. A different structure on
/// any rank is detected and planned again. Returns whether plans were found: false if the
/// checkpoint stores none, those of another number of ranks, or a file of plans that is damaged or
/// of another checkpoint (a warning); the cache is then empty, and the next SaveReport says why.
/// Collective: every rank passes its own cache and the same location; rank 0 reads. All ranks
/// return the same, or all throw the same CheckpointError.
bool warm_plan_cache(SavePlanCache& cache, const Location& location, Communicator& comm,
                     const OpenOptions& options = {});

}  // namespace dckpt
