#pragma once

#include <cstdint>
#include <optional>

#include "dist_checkpointing/load/load_steps.h"
#include "dist_checkpointing/load/misfit.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {

/// Why a shard whose shape may differ from the stored one must not be loaded: less is asked for
/// than is stored, and the next save would lose the rest. Not if load.allow_truncation says so,
/// which is recorded in the report, nor if the rest is padding: zeros, or the last kept row again.
/// To find out, that part is read, up to kMaxPadding bytes of it.
std::optional<Misfit> truncation_of(LoadCall& load, const OpenedCheckpoint& from,
                                    const ShardedTensor& shard,
                                    const TensorStorageMetadata& stored);
inline constexpr std::int64_t kMaxPadding = std::int64_t{64} << 20;

}  // namespace dckpt
