#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/open.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Opens a checkpoint of a training root with the strategy that its run loads with, or with the one
/// that is detected if the checkpoint evidently has another format.
std::unique_ptr<CheckpointReader> open_in_root(const Location& checkpoint,
                                               const StrategySpec& strategy);

/// Why a directory is not a finished checkpoint; empty if it is one: its markers and its common
/// state can be read, and every data file exists and is long enough. Does not read tensor bytes.
/// Throws CheckpointError (io, unsupported, invalid argument) if this cannot be determined: an
/// unreadable checkpoint is not an unfinished one. Opens as open_in_root() does.
std::optional<std::string> why_incomplete(const Location& checkpoint,
                                          const StrategySpec& strategy = OpenOptions().strategy);

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
LatestChoice choose_latest(const Location& root,
                           const StrategySpec& strategy = OpenOptions().strategy);

/// The same for a run that resumes; a warning names everything that was skipped. Empty for a root
/// that does not exist or holds no checkpoint and no tracker. Throws CheckpointError (incomplete)
/// if there is something, but nothing complete.
std::optional<LatestCheckpoint> find_latest(const Location& root,
                                            const StrategySpec& strategy = OpenOptions().strategy);

}  // namespace dckpt
