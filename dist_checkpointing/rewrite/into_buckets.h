#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/optimizer_sharding.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The same checkpoint with the optimizer's state in buckets, as Megatron-Core 0.15 and newer store
/// it under dp_reshardable. `source` has it in tensors of the model's shapes, fully_reshardable.
/// `run`: what is to resume, where it differs from the checkpoint's args, which then say it, too.
/// Throws CheckpointError as bucket_settings() and lay_out_buckets() do, and (mismatch) for state
/// that is not complete.
std::unique_ptr<CheckpointReader> into_buckets(std::unique_ptr<CheckpointReader> source,
                                               const RunArguments& run,
                                               std::vector<std::string>& remarks);

}  // namespace dckpt
