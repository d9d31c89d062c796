#pragma once

#include "mapping/planning/save_planner.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Begins with the plans that the checkpoint `location` keeps (PlannerOptions::keep_plans), so
/// that the first save of a job that resumes with the same structure exchanges fingerprints instead
/// of plans. Another structure, on any rank, is noticed and planned anew. Returns whether there
/// were plans to begin with: false if the checkpoint keeps none, or keeps those of another number
/// of ranks; the planner then remembers nothing. Collective: every rank passes its own planner and
/// the same location; rank 0 reads. All return the same or all throw the same CheckpointError.
bool seed_planner(SavePlanner& planner, const Location& location, Communicator& comm);

}  // namespace dckpt
