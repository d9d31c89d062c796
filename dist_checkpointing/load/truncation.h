#pragma once

#include <cstdint>
#include <optional>

#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/misfit.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {

/// Returns why a shard whose shape may differ from the stored one must not be loaded: it requests
/// less than is stored, and the next save would lose the rest. Accepts the shard if
/// load.allow_truncation permits it, which is recorded in the report, or if the rest is padding:
/// zeros, or the last kept row again. Reads that part to find out, up to kMaxPadding bytes of it.
std::optional<Misfit> truncation_of(LoadCall& load, const OpenedCheckpoint& from,
                                    const ShardedTensor& shard,
                                    const TensorStorageMetadata& stored);
inline constexpr std::int64_t kMaxPadding = std::int64_t{64} << 20;

}  // namespace dckpt
