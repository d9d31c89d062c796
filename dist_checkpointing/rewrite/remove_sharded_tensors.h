#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "dist_checkpointing/tracker.h"
#include "strategies/storage/location.h"

namespace dckpt {

struct RemoveOptions {
  bool dry_run = false;                      ///< report, change nothing
  std::optional<IterationName> iteration{};  ///< under a training root, instead of the latest
  /// Asks to give up; heeded until the first change, which is followed by the others.
  std::stop_token stop{};
};

/// What was removed, or would be.
struct RemovedTensors {
  std::uint64_t tensors = 0;
  std::uint64_t objects = 0;
  std::vector<std::string> files;  ///< that were deleted, because nothing else was in them
  std::uint64_t bytes_freed = 0;   ///< of these files
  std::uint64_t bytes_kept = 0;  ///< of removed tensors and objects in files that hold others too:
                                 ///< nothing refers to these bytes any more, but they stay
};

/// Takes every tensor and object whose key begins with `key_prefix` out of the torch_dist or DCP
/// checkpoint `location`, in place, as Megatron's operation of this name does: deletes the data
/// files that hold nothing else (see SaveOptions::separation_hint) and rewrites .metadata. No other
/// data file is touched. Everything else in the metadata stays as it was, attributes of Megatron
/// among it; the common state is never removed. integrity.json, where there is one, is brought up
/// to date without reading data files: digests of files that stay are kept.
///
/// One process calls it while nothing else uses the checkpoint. A crash at any moment leaves the
/// checkpoint as it was or without the keys, readable either way; then a second call deletes files
/// that the first one left.
///
/// Throws CheckpointError: (invalid argument) for an empty prefix and for one that no key begins
/// with, naming near ones; (corrupt) if .metadata does not have the digest of integrity.json;
/// (unsupported) for other formats; (io). If it throws while files are being deleted, the keys are
/// gone already.
RemovedTensors remove_sharded_tensors(const Location& location, std::string_view key_prefix,
                                      const RemoveOptions& options = {});

}  // namespace dckpt
