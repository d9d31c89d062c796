#pragma once

#include <memory>

#include "dist_checkpointing/open/open_options.h"
#include "mapping/base/api.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Resolves a user's location: a checkpoint directory to itself, a training root to its latest (or
/// the requested) iteration, and a file inside a checkpoint to its directory. Throws
/// CheckpointError: (invalid argument) for an iteration of something that is not a root, (io) if
/// nothing is there, (incomplete) for an unfinished checkpoint, (corrupt) for a malformed tracker
/// file.
[[nodiscard]] Location resolve_checkpoint(const Location& location,
                                          const OpenOptions& options = {});

/// Detects the format and opens the checkpoint for reading. Throws CheckpointError: (unsupported)
/// naming the existing backends and versions if no registered strategy reads this one; (mismatch)
/// for a checkpoint that `options.strategy` does not read, or that the map does not fit.
[[nodiscard]] std::unique_ptr<CheckpointReader> open_checkpoint(const Location& location,
                                                                const OpenOptions& options = {});

}  // namespace dckpt
