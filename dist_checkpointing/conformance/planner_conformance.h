#pragma once

#include <functional>

#include "configs/options.h"
#include "configs/policy.h"
#include "dist_checkpointing/conformance/report.h"
#include "mapping/base/api.h"
#include "mapping/state/value.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// It returns what a rank of a job of so many ranks has. The ranks of each job together describe
/// the same tensors and objects.
using StateOfRank = std::function<StateDict(int rank, int ranks)>;

/// Checks that a planner conforms, with ranks as threads. `options` names the planner
/// (registered_planner), and is saved with as it is. For tests of your own planner:
///
///   EXPECT_THAT(check_planner(policy.save, temporary_folder).problems, IsEmpty());
///
/// Covers that states of one, two and four ranks, with replicas, uneven and empty shards and
/// objects, become the same tensors and objects, each covered exactly; that the same state is
/// planned the same way twice; that a save which reuses plans stores what one without a cache
/// stores, also after the structure has changed and changed back; that a save in the background
/// stores what one in the foreground does; and that a state which cannot be planned is the same
/// error on all ranks, after which the next save succeeds.
///
/// `state`: what is saved, if the planner looks for certain keys; else some that suits any.
/// `scratch` is a folder for the checkpoints, created if necessary and not cleaned up afterwards.
/// Takes seconds.
ConformanceReport check_planner(const SaveOptions& options, const Location& scratch,
                                const StateOfRank& state = {});

/// The same for a planner that loads, which `policy.load` names. What is loaded has been saved with
/// `policy.save` by four ranks: name the planner's counterpart there, if it has one.
///
/// Covers that one, two and four ranks load the same tensors and objects, each rank by itself and
/// together, in the background and again; that memory which the state has is filled where it is;
/// and that a load which fails on one rank is the same error on all, after which the next one
/// succeeds.
ConformanceReport check_load_planner(const Policy& policy, const Location& scratch,
                                     const StateOfRank& state = {});

}  // namespace dckpt
