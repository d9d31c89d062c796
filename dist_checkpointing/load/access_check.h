#pragma once

#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Megatron's validation of access: that the main replicas of the shards that all ranks ask for cover each key exactly, objects and tensors. `sharded` has sharded
/// leaves only. Collective; throws the same CheckpointError (mismatch) on all ranks, with Megatron's words and a table of which rank holds what.
void check_access(const Value& sharded, Communicator& comm);

}  // namespace dckpt
