#pragma once

#include "mapping/base/api.h"
#include "operations/convert/convert_options.h"
#include "strategies/comm/communicator.h"
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

/// Does the same with the ranks of a job, which share the work as workers of a pool: that of
/// ConvertOptions::workers, or one of their own beside the destination, which is removed at the
/// end, and all ranks get a report. A dry run, a resumed conversion and a check of the round trip
/// are done by rank 0 alone, which alone gets their report. If some ranks fail, the others do their
/// work, and a warning on rank 0 names them; if all fail, all throw the error of rank 0.
/// Collective.
ConvertReport convert(const Location& source, const Location& destination,
                      const ConvertOptions& options, Communicator& comm);

}  // namespace dckpt
