#pragma once

#include <memory>

#include "dist_checkpointing/open_options.h"
#include "mapping/base/api.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Resolves a user's location: a checkpoint directory to itself, a training root to its latest (or
/// the requested) iteration, and a file inside a checkpoint to its directory. Throws
/// CheckpointError: (invalid argument) an iteration of something that is not a root, (io) nothing
/// there, (incomplete) not a finished checkpoint, (corrupt) malformed tracker file.
[[nodiscard]] Location resolve_checkpoint(const Location& location,
                                          const OpenOptions& options = {});

/// Detects the format and opens the checkpoint for reading. Throws CheckpointError: (unsupported)
/// for a backend or version that no registered strategy reads; the message names the existing ones;
/// (mismatch) for a checkpoint that `options.strategy` does not read, or that the map does not fit.
[[nodiscard]] std::unique_ptr<CheckpointReader> open_checkpoint(const Location& location,
                                                                const OpenOptions& options = {});

}  // namespace dckpt
