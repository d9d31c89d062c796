#pragma once

#include <string>

#include "dist_checkpointing/load/found_tensors.h"
#include "dist_checkpointing/load/load.h"
#include "mapping/base/finding.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

// State of modules that belongs to no parameter (`_extra_state`) comes and goes with the hardware:
// none of these functions counts it.

/// Warns of tensors that no rank has requested, unless load.allow_unloaded matches them.
void tell_unloaded(const FoundTensors& found, Findings& findings);

/// Throws CheckpointError (mismatch) if the planned save of all ranks loses tensors of the
/// checkpoint: it has them neither under their keys nor, in the common state, under their paths;
/// or it has some that were not loaded. `allow` permits either.
void require_continued(const FoundTensors& found, const Metadata& planned, const Value* common,
                       const AllowedOnce& allow);

/// Loads as load() does, for a run that may have loaded other parts of the same checkpoint, which
/// `before` lists on rank 0; it may be null.
LoadReport load_more(StateDict& state, const Location& location, const LoadOptions& options,
                     Communicator& comm, LoadPlanCache& cache, const FoundTensors* before);

}  // namespace dckpt
