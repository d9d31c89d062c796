#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/training_root/soundness.h"
#include "mapping/base/api.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

struct LatestCheckpoint {
  std::string directory;        ///< inside the root
  std::uint64_t iteration = 0;  ///< 0 for `release`
};

struct LatestChoice {
  std::optional<LatestCheckpoint> checkpoint;
  std::string why;                       ///< reason, as text for messages: "the tracker names it"
  std::vector<std::string> passed_over;  ///< skipped checkpoints with reasons, as text for messages
};

/// Chooses the checkpoint that a run resumes from: the one that the tracker names; without a
/// tracker, or if that one is incomplete, the newest complete iteration, otherwise a complete
/// `release`. The tracker takes precedence over newer iterations, as in Megatron: people edit it to
/// go back. Throws as why_incomplete and read_tracker do, and (incomplete) if the tracker names a
/// checkpoint that does not exist, or one that is incomplete although a newer iteration is
/// complete.
LatestChoice choose_latest(const Location& root,
                           const StrategySpec& strategy = OpenOptions().strategy);

/// Does the same with the caller's knowledge of the directories of the root; exceptions pass
/// through.
struct RootKnowledge {
  /// Returns why a directory is not complete.
  std::function<std::optional<std::string>(const std::string& directory)> why_incomplete;
  /// Returns whether find_unsound() finds nothing; only called for complete ones.
  std::function<bool(const std::string& directory)> is_sound;
};
LatestChoice choose_latest(const Location& root, const RootKnowledge& knowledge);

/// Does the same for a run that resumes; a warning names everything that was skipped. Returns
/// nothing for a root that does not exist or holds no checkpoint and no tracker. Throws
/// CheckpointError (incomplete) if the root has entries, but no complete checkpoint.
[[nodiscard]] std::optional<LatestCheckpoint> find_latest(
    const Location& root, const StrategySpec& strategy = OpenOptions().strategy);

}  // namespace dckpt
