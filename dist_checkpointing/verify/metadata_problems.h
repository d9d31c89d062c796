#pragma once

#include "dist_checkpointing/verify/problems.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// Returns what the metadata alone show to be wrong: elements that no chunk or two chunks hold,
/// names of files that lead out of the checkpoint, and records that share bytes.
Problems problems_of_metadata(const CheckpointReader& reader);

}  // namespace dckpt
