#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "configs/policy/options.h"
#include "mapping/base/phase_clock.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/storage/hashing.h"
#include "strategies/storage/location.h"
#include "strategies/storage/publication.h"

namespace dckpt {

// The steps that write and publish the files of a checkpoint. Every writer (a foreground or
// background save, a conversion) begins a publication on one rank, writes the items of each rank
// into its directory, and publishes.

using ManifestDigests = std::map<std::string, FileDigest>;  ///< of files in the checkpoint, by name

/// The destination of a rank's files, and how to write them.
struct WriteTarget {
  std::shared_ptr<Storage> storage;
  std::string directory;         ///< hidden until it is published
  bool integrity = false;        ///< a manifest will be written
  PhaseClock* phases = nullptr;  ///< measures Phase::kSync, and calls outside kCopy
};

/// The files that were written.
struct WrittenFiles {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t direct = 0;   ///< part of `count` written past the page cache
  ManifestDigests digests{};  ///< empty without a manifest
};

/// The items and files that a rank has written.
struct WrittenData {
  WrittenItems items;
  WrittenFiles files;
};

/// Runs on one rank: with `options.overwrite` checks that an existing `target` may be replaced and
/// locks it until the publication ends, so that no other job changes it meanwhile, and removes
/// leftovers of dead processes that were writing to this name. Throws CheckpointError.
/// `may_replace` is as in SaveHooks.
Publication begin_publication(const Location& target, const SaveOptions& options,
                              const std::function<void(const FileInfo&)>& may_replace = {});

/// Does the same for an attempt that can be interrupted and continued: its files are kept if it
/// fails. `left` is one of unfinished_attempts(), to continue it; empty to start from scratch.
/// `token` names this attempt, as for Publication::begin(). With `locks`, other jobs cannot change
/// the target meanwhile; without, another publisher of the same pool can succeed this one.
Publication begin_resumable(const Location& target, const SaveOptions& options,
                            const std::string& left, const std::string& token, bool locks);

/// Writes the items of a rank and makes them durable.
WrittenData write_items(const WriteTarget& target, const SaveStrategy& strategy, int rank,
                        const SavePlan& items, ItemSource& source);

/// Copies files of another folder beside the items, and makes them durable if `sync`.
WrittenFiles copy_files(const WriteTarget& target, const Storage& from,
                        std::span<const std::string> names, bool sync);

/// The metadata and callbacks with which publish_checkpoint() completes written data files.
struct CheckpointEnd {
  const Metadata& metadata;
  const CommonState* common = nullptr;
  ManifestDigests digests{};  ///< of the data files; listed in the manifest with target.integrity
  bool sync = true;           ///< makes the files written here durable
  std::function<void()> check{};  ///< called before the marker is written; throws to prevent it
  /// Makes dckpt_report.json from the files written before it; empty: no file.
  std::function<std::string(const WrittenFiles&)> report{};
};

/// Runs on the rank that began the publication, when all ranks have written: writes the files that
/// readers start from and, with `target.integrity`, the manifest, then the marker of a complete
/// checkpoint, and makes the checkpoint visible. Returns the files written here. If anything fails,
/// everything written is removed.
WrittenFiles publish_checkpoint(Publication publication, const WriteTarget& target,
                                const SaveStrategy& strategy, const CheckpointEnd& end);

}  // namespace dckpt
