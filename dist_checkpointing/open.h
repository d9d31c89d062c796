#pragma once

#include <memory>
#include <optional>

#include "configs/options.h"
#include "dist_checkpointing/tracker.h"
#include "mapping/base/api.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

struct OpenOptions {
  /// Under a training root: the iteration to open instead of the tracker's. Of a directory with
  /// files of several iterations (local): the one to open instead of the newest.
  std::optional<IterationName> iteration{};
  /// If the metadata has lost the original shapes of flattened tensors, take them from the model
  /// tensors of the same checkpoint where possible.
  bool recover_flattened_shapes = true;
  /// The strategy to open it with; see LoadOptions::strategy.
  StrategySpec strategy{.name = std::string(kAutoStrategy)};
  /// Gives the checkpoint other keys; see LoadOptions::map.
  KeyMapOptions map{};
};

/// Resolves a user's location: a checkpoint directory to itself, a training root to its latest (or
/// the requested) iteration, and a file inside a checkpoint to its directory. Throws
/// CheckpointError: (invalid argument) an iteration of something that is not a root, (io) nothing
/// there, (incomplete) not a finished checkpoint, (corrupt) malformed tracker file.
Location resolve_checkpoint(const Location& location, const OpenOptions& options = {});

/// Detects the format and opens the checkpoint for reading. Throws CheckpointError: (unsupported)
/// for a backend or version that no registered strategy reads; the message names the existing ones;
/// (mismatch) for a checkpoint that `options.strategy` does not read, or that the map does not fit.
std::unique_ptr<CheckpointReader> open_checkpoint(const Location& location,
                                                  const OpenOptions& options = {});

}  // namespace dckpt
