#pragma once

#include <memory>
#include <optional>
#include <string>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/verify/check_stored.h"
#include "mapping/base/api.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// Opens a checkpoint of a training root with the strategy that its run loads with, or with the
/// detected one if the checkpoint evidently has another format.
[[nodiscard]] std::unique_ptr<CheckpointReader> open_in_root(const Location& checkpoint,
                                                             const StrategySpec& strategy);

/// The reason why a directory is not a finished, or not a sound checkpoint.
struct Unfinished {
  enum class Kind : std::uint8_t {
    kNoMetadata,     ///< the save did not reach its end
    kFileMissing,    ///< a data file, or the common state's file
    kFileTruncated,  ///< data files are there, but too short or not regular
    kDamaged,        ///< the metadata or the common state cannot be decoded
    kUnsound,        ///< it is finished, but check_stored() has found problems
  };
  Kind kind;
  std::string why;  ///< reason, as text for messages
};

/// Returns nothing for a finished checkpoint, from which a run resumes: its markers and its common
/// state can be read, and every data file exists and is long enough. Does not read tensor bytes.
/// Opens as open_in_root() does. Throws CheckpointError (io, unsupported, invalid argument) if this
/// cannot be determined: an unreadable checkpoint is not an unfinished one.
[[nodiscard]] std::optional<Unfinished> find_unfinished(
    const Location& checkpoint, const StrategySpec& strategy = OpenOptions().strategy);
/// Returns the reason alone.
std::optional<std::string> why_incomplete(const Location& checkpoint,
                                          const StrategySpec& strategy = OpenOptions().strategy);

/// Returns nothing for a sound checkpoint: a finished one that check_stored() accepts, by the
/// headers of its chunks, or with `options.deep` by all bytes. Only a sound checkpoint counts where
/// others are deleted because it stays, where it takes the place of another, and where a tracker is
/// made to name it. Throws as find_unfinished() does, also for problems of check_stored() that say
/// nothing about the checkpoint.
[[nodiscard]] std::optional<Unfinished> find_unsound(
    const Location& checkpoint, const StrategySpec& strategy = OpenOptions().strategy,
    const StoredCheck& options = {});

}  // namespace dckpt
