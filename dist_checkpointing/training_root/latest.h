#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist_checkpointing/open.h"
#include "mapping/base/api.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Opens a checkpoint of a training root with the strategy that its run loads with, or with the
/// detected one if the checkpoint evidently has another format.
[[nodiscard]] std::unique_ptr<CheckpointReader> open_in_root(const Location& checkpoint,
                                                             const StrategySpec& strategy);

/// The reason why a directory is not a finished checkpoint.
struct Unfinished {
  enum class Kind : std::uint8_t {
    kNoMetadata,     ///< the save did not reach its end
    kFileMissing,    ///< a data file, or the common state's file
    kFileTruncated,  ///< data files are there, but too short or not regular
    kDamaged,        ///< the metadata or the common state cannot be decoded
  };
  Kind kind;
  std::string why;  ///< reason, as text for messages
};

/// Returns nothing for a finished checkpoint: its markers and its common state can be read, and
/// every data file exists and is long enough. Does not read tensor bytes. Opens as open_in_root()
/// does. Throws CheckpointError (io, unsupported, invalid argument) if this cannot be determined:
/// an unreadable checkpoint is not an unfinished one.
[[nodiscard]] std::optional<Unfinished> find_unfinished(
    const Location& checkpoint, const StrategySpec& strategy = OpenOptions().strategy);
/// Returns the reason alone.
std::optional<std::string> why_incomplete(const Location& checkpoint,
                                          const StrategySpec& strategy = OpenOptions().strategy);

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

/// Does the same with the caller's knowledge of which directories of the root are complete. `check`
/// returns why one is not; its exceptions pass through.
using CompletenessCheck = std::function<std::optional<std::string>(const std::string& directory)>;
LatestChoice choose_latest(const Location& root, const CompletenessCheck& check);

/// Does the same for a run that resumes; a warning names everything that was skipped. Returns
/// nothing for a root that does not exist or holds no checkpoint and no tracker. Throws
/// CheckpointError (incomplete) if the root has entries, but no complete checkpoint.
[[nodiscard]] std::optional<LatestCheckpoint> find_latest(
    const Location& root, const StrategySpec& strategy = OpenOptions().strategy);

}  // namespace dckpt
