#pragma once

#include "dist_checkpointing/planner/load_planner.h"
#include "mapping/base/bytes.h"

namespace dckpt {

// Ranks exchange these plans if a planner decides for all of them. Both functions throw
// CheckpointError (invalid argument) if a tensor's description contradicts itself.

Bytes encode(const LoadPlan& plan);
/// Also throws CheckpointError (corrupt) for damaged bytes.
LoadPlan decode_load_plan(ByteView bytes);

}  // namespace dckpt
