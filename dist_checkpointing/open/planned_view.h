#pragma once

#include <memory>

#include "configs/policy/options.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Returns a reader of the tensors and objects that a load planner makes of what is stored (see
/// OpenOptions::planner), or `reader` itself if there is no planner. They are made when they are
/// read, in pieces of bounded memory. Throws CheckpointError (unsupported) if the planner is not
/// registered, and (mismatch) if what it plans does not fit.
std::unique_ptr<CheckpointReader> with_planner(std::unique_ptr<CheckpointReader> reader,
                                               const StrategySpec& planner,
                                               const Location& location);

/// Throws CheckpointError (unsupported) for a checkpoint that names the load planner by which it is
/// read: the caller has none.
void require_planner(const CheckpointReader& reader);

}  // namespace dckpt
