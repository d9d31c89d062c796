#pragma once

#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "mapping/base/finding.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"

namespace DCKPT_API dckpt {

/// Compares what several ranks hold of the same tensors and objects, as a save with these options
/// would: for trainers that look between saves whether replicas have drifted apart. Returns a
/// finding (FindingCode::kRanksDiffer), which rank 0 logs as a warning, with the keys and ranks
/// that differ, the same on every rank; nothing if all is equal. Plain values and tensors are
/// compared by saves only. `options.check_replicas` says how much is read, and kOff means kAll
/// here. Stores nothing and changes nothing. Collective: every rank passes its own state and the
/// same options. Throws CheckpointError, the same on all ranks, as save() does for such a state.
[[nodiscard]] Findings check_replicas(const StateDict& state, const SaveOptions& options,
                                      Communicator& comm);

}  // namespace dckpt
