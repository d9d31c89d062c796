#pragma once

#include "dist_checkpointing/rewrite/convert_options.h"
#include "mapping/base/api.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Reads a checkpoint and publishes a converted copy. Streams: memory stays within
/// ConvertLimits::memory plus the metadata. Plain DCP has no common state: its objects become
/// common state in torch_dist, under their paths, and objects again when converted back. Formats of
/// tensors alone (hf, safetensors) leave out objects and common state; a remark names them. Throws
/// CheckpointError; then nothing is visible at the destination and what was there is unchanged.
/// Among others (already exists) for a destination that is not to be replaced, (mismatch) if what
/// it is to resume was another conversion, (unsupported) for rank folders of Megatron's oldest
/// format, whose tensors no Megatron finds before they are joined, (invalid argument) for what
/// would leave flattened optimizer state in a form from which no release resumes, and (io) if there
/// is not enough free space, even in a dry run.
ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options = {});

}  // namespace dckpt
