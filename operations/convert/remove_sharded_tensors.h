#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/api.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

struct RemoveOptions {
  bool dry_run = false;                      ///< report, change nothing
  std::optional<IterationName> iteration{};  ///< under a training root, instead of the latest
  /// Requests a stop, which is honored only before the first change; afterwards all changes are
  /// made.
  std::stop_token stop{};
};

/// The removed entries, or in a dry run those that would be removed.
struct RemovedTensors {
  std::uint64_t tensors = 0;
  std::uint64_t objects = 0;
  std::vector<std::string> files;  ///< deleted files, which held nothing else
  std::uint64_t bytes_freed = 0;   ///< size of these files
  std::uint64_t bytes_kept = 0;    ///< bytes of removed tensors and objects in files that also hold
                                   ///< others; they stay but are no longer referenced
};

/// Removes every tensor and object whose key starts with `key_prefix` from the torch_dist or DCP
/// checkpoint `location`, in place, like Megatron's function of this name: deletes the data files
/// that hold nothing else (see SaveOptions::separation_hint) and rewrites .metadata. No other data
/// file is touched. Everything else in the metadata is kept, including Megatron's attributes; the
/// common state is never removed. integrity.json, if present, is updated without reading data
/// files: the digests of remaining files are kept.
///
/// Call it while nothing else uses the checkpoint; of several removals at once, one succeeds and
/// the others throw (aborted) before they have changed anything. A crash at any moment leaves the
/// checkpoint readable, with or without the keys; a second call deletes files that the first one
/// left.
///
/// Throws CheckpointError: (invalid argument) for an empty prefix and for one that no key starts
/// with, naming similar ones; (aborted) if another removal is running, or .metadata has changed
/// meanwhile; (corrupt) if .metadata does not have the digest of integrity.json; (unsupported) for
/// other formats; (io). If it throws while files are being deleted, the keys have already been
/// removed.
RemovedTensors remove_sharded_tensors(const Location& location, std::string_view key_prefix,
                                      const RemoveOptions& options = {});

}  // namespace dckpt
