#pragma once

#include <functional>

#include "configs/policy/options.h"
#include "configs/policy/policy.h"
#include "conformance/report.h"
#include "mapping/base/api.h"
#include "mapping/state/value.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Returns the state of a rank in a job of `ranks` ranks. The ranks of each job together describe
/// the same tensors and objects.
using StateOfRank = std::function<StateDict(int rank, int ranks)>;

/// Checks that a planner conforms, with ranks as threads. `options` names the planner
/// (registered_planner) and is used unchanged for saving. For tests of your own planner:
///
///   EXPECT_THAT(check_planner(policy.save, temporary_folder).problems, IsEmpty());
///
/// Covers that states of one, two and four ranks, with replicas, uneven and empty shards and
/// objects, become the same tensors and objects, each covered exactly; that the same state is
/// planned the same way twice; that a save which reuses plans stores the same as one without a
/// cache, also after the structure has changed and changed back; that a background save stores the
/// same as a foreground save; and that a state which cannot be planned is the same error on all
/// ranks, after which the next save succeeds.
///
/// `state` makes the saved states, for planners that need certain keys; by default, samples that
/// suit any planner are saved. `scratch` is a folder for the checkpoints, created if necessary and
/// not cleaned up afterwards. Takes seconds.
ConformanceReport check_planner(const SaveOptions& options, const Location& scratch,
                                const StateOfRank& state = {});

/// Does the same for a planner that loads, which `policy.load` names. Four ranks save the
/// checkpoint with `policy.save`: name the planner's counterpart there, if it has one.
///
/// Covers that one, two and four ranks load the same tensors and objects, each rank by itself and
/// together, in the background and again, into states that hold other elements before; that
/// existing memory of the state is filled in place; that a load which fails on one rank is the
/// same error on all, after which the next one succeeds; and that readers without a state see the
/// same tensors (LoadPlanner::contents).
ConformanceReport check_load_planner(const Policy& policy, const Location& scratch,
                                     const StateOfRank& state = {});

}  // namespace dckpt
