#pragma once

#include <memory>
#include <optional>

#include "dist_checkpointing/tracker.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

struct OpenOptions {
  /// Under a training root: what is wanted instead of what the tracker file names.
  std::optional<IterationName> iteration{};
  /// Original shapes of flattened tensors whose metadata have lost them are taken from the model
  /// tensors of the same checkpoint where possible.
  bool recover_flattened_shapes = true;
};

/// Where a location given by a user leads: a checkpoint directory as it is, the latest (or wanted)
/// iteration of a training root, or the directory of a file inside a checkpoint. Throws
/// CheckpointError: (invalid argument) an iteration of what is no root, (io) nothing there,
/// (incomplete) not a finished checkpoint, (corrupt) malformed tracker file.
Location resolve_checkpoint(const Location& location, const OpenOptions& options = {});

/// Detects the format and opens the checkpoint for reading. Throws CheckpointError: (unsupported)
/// for a backend or version that no registered strategy reads, naming those that exist.
std::unique_ptr<CheckpointReader> open_checkpoint(const Location& location,
                                                  const OpenOptions& options = {});

}  // namespace dckpt
