#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strategies/storage/location.h"

namespace dckpt {

/// Why a directory is not a finished checkpoint; empty if it is one: its markers and its common
/// state can be read, and every data file exists and is long enough. Does not read tensor bytes.
/// Throws CheckpointError (io, unsupported) if this cannot be determined: an unreadable checkpoint
/// is not an unfinished one.
std::optional<std::string> why_incomplete(const Location& checkpoint);

struct LatestCheckpoint {
  std::string directory;        ///< inside the root
  std::uint64_t iteration = 0;  ///< 0 for `release`
};

struct LatestChoice {
  std::optional<LatestCheckpoint> checkpoint;
  std::string why;                       ///< for people: "the tracker names it"
  std::vector<std::string> passed_over;  ///< for people: what was skipped, and why
};

/// The checkpoint that a run resumes from: the one that the tracker names if it is complete,
/// otherwise the newest complete iteration, otherwise a complete `release`. The tracker takes
/// precedence over newer iterations, as in Megatron: people edit it to go back. Throws what
/// why_incomplete throws.
LatestChoice choose_latest(const Location& root);

/// The same for a run that resumes; a warning names everything that was skipped. Empty for a root
/// that does not exist or holds no checkpoint and no tracker. Throws CheckpointError (incomplete)
/// if there is something, but nothing complete.
std::optional<LatestCheckpoint> find_latest(const Location& root);

}  // namespace dckpt
