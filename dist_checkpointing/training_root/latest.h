#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "strategies/storage/location.h"

namespace dckpt {

/// Why a directory is not a finished checkpoint; empty if it is one: its markers and its common
/// state can be read, and every data file is there and long enough. Tensor bytes are not read.
/// Throws CheckpointError (io, unsupported) if that cannot be found out: an unreadable checkpoint
/// is not an unfinished one.
std::optional<std::string> why_incomplete(const Location& checkpoint);

struct LatestCheckpoint {
  std::string directory;        ///< inside the root
  std::uint64_t iteration = 0;  ///< 0 for `release`
};

struct LatestChoice {
  std::optional<LatestCheckpoint> checkpoint;
  std::string why;                       ///< for people: "the tracker names it"
  std::vector<std::string> passed_over;  ///< for people: what was not chosen, and why not
};

/// The checkpoint that a run resumes from: the one that the tracker names if it is complete, else
/// the newest complete iteration, else a complete `release`. That the tracker wins over newer
/// iterations is Megatron's rule: people who go back edit it. Throws what why_incomplete throws.
LatestChoice choose_latest(const Location& root);

/// The same for a run that resumes: everything that is passed over is named in a warning. Empty for
/// a root that is not there or holds no checkpoint and no tracker. Throws CheckpointError
/// (incomplete) if there is something, but nothing complete.
std::optional<LatestCheckpoint> find_latest(const Location& root);

}  // namespace dckpt
