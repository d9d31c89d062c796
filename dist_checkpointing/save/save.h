#pragma once

#include "configs/policy/options.h"
#include "dist_checkpointing/save/save_hooks.h"
#include "dist_checkpointing/save/save_report.h"
#include "mapping/base/api.h"
#include "mapping/planning/save/plan_cache.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Saves a sharded state dict as the checkpoint `location`, which ends up either complete or not
/// visible at all. Collective: every rank of `comm` passes its own state and the same location and
/// options, which are compared. All ranks return, or all throw the same CheckpointError.
///
/// ShardedTensor and ShardedObject leaves are stored under their keys (main replicas only);
/// factories are expanded, non-persistent leaves left out. With `options.parallel` the replicas of
/// a shard share the writing. Everything else is the common state; rank 0's is stored. With
/// Compat::kDcp there is no common state: every other leaf is stored once under its path
/// (components joined by '.'), plain tensors as tensors and values as objects.
///
/// Logs the report, which is the same on every rank, as one line. `hooks` reports progress and can
/// cancel the save; `options.timeout` bounds it.
///
/// Tensors may be strided; they must be in memory of the CPU or of a registered device, those of
/// the common state in CPU memory, and must not change until the call returns.
SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options,
                Communicator& comm, const SaveHooks& hooks = {});
SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options = {});

/// Does the same for one of several saves. Each rank keeps a `cache`, which remembers the plan
/// between saves. If only values have changed, the ranks exchange a few bytes instead of plans.
/// After a failed save nothing is remembered.
SaveReport save(const StateDict& state, const Location& location, const SaveOptions& options,
                Communicator& comm, SavePlanCache& cache, const SaveHooks& hooks = {});

}  // namespace dckpt
