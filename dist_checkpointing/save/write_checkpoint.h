#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "configs/options.h"
#include "mapping/base/bytes.h"
#include "mapping/base/phase_clock.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/storage/hashing.h"
#include "strategies/storage/location.h"
#include "strategies/storage/publication.h"

namespace dckpt {

// How the files of a checkpoint get where they belong. Whatever writes one (a save, in the
// background too, and a conversion) begins a publication on one rank, writes the items of each rank
// into its directory, and publishes.

using ManifestDigests = std::map<std::string, FileDigest>;  ///< of files in the checkpoint, by name

/// Where to write, and how.
struct WriteTarget {
  std::shared_ptr<Storage> storage;
  std::string directory;         ///< hidden until it is published
  bool integrity = false;        ///< there will be a manifest
  PhaseClock* phases = nullptr;  ///< measures Phase::kSync, and calls that are no part of kCopy
};

/// Files that were written.
struct WrittenFiles {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  std::uint64_t direct = 0;   ///< of `count`: past the page cache
  ManifestDigests digests{};  ///< empty without a manifest
};

/// What a rank has written.
struct WrittenData {
  WrittenItems items;
  WrittenFiles files;
};

/// On one rank: checks that what is at `target` may be replaced, if it is to be, and removes what
/// dead processes have left of writing to this name. Throws CheckpointError.
Publication begin_publication(const Location& target, const SaveOptions& options);

/// The same of an attempt that may be interrupted and gone on with: what it has written is kept if
/// it fails. `left`: of unfinished_attempts(), to go on with; empty to start anew.
Publication begin_resumable(const Location& target, const SaveOptions& options,
                            const std::string& left);

/// Files of a checkpoint that no other reader opens.
struct SideFiles {
  Bytes plans{};  ///< dckpt_plans.bin; empty: none
  /// Makes dckpt_report.json from what publish_checkpoint() has written before it; none: no file.
  std::function<std::string(const WrittenFiles&)> report{};
};

/// Writes the items of a rank and makes them durable.
WrittenData write_items(const WriteTarget& target, const SaveStrategy& strategy, int rank,
                        const SavePlan& items, ItemSource& source);

/// Copies files of another folder beside them, and makes them durable if `sync`.
WrittenFiles copy_files(const WriteTarget& target, const Storage& from,
                        std::span<const std::string> names, bool sync);

/// On the rank that began it, when all ranks have written: writes what readers start from and,
/// with `target.integrity`, the manifest of these files and of those in `digests`, then the marker
/// of a complete checkpoint; makes it visible. `check` throws if it is not to be published after
/// all; it is called before the marker is written.
/// Returns what was written here. If anything fails, everything written is removed.
WrittenFiles publish_checkpoint(Publication publication, const WriteTarget& target,
                                const SaveStrategy& strategy, const Metadata& metadata,
                                const CommonState* common, const ManifestDigests& digests,
                                bool sync, const std::function<void()>& check,
                                const SideFiles& side_files = {});

}  // namespace dckpt
