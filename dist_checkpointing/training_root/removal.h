#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/training_root/unfinished_work.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Removes a checkpoint from a training root: it disappears in one step and is then deleted; links
/// are not followed. A crash leaves a hidden directory for remove_leftovers. Throws CheckpointError
/// (io), or (invalid argument) if `name` is not a directory. With `id`, throws (aborted) and
/// removes nothing if another directory has this name by now (FileInfo::id).
void delete_checkpoint(Storage& root, const std::string& name, std::uint64_t id = 0);

/// Returns whether there is a hidden directory of a checkpoint that a save was replacing at
/// `target`.
bool was_being_replaced(const Location& target);

/// Removes the leftovers of killed saves and deletions from a training root: only hidden names of
/// its iterations and tracker. A replaced checkpoint whose successor was never published, or is not
/// sound, is restored; `strategy` is the one that the run loads with. The caller makes sure that no
/// other Checkpointer works in the root. Concurrent save() or convert() in the same root is safe on
/// the same host. A warning names leftovers that cannot be removed.
void remove_leftovers(const Location& root, const StrategySpec& strategy = OpenOptions().strategy);

/// A leftover whose job has ended has one of these fates.
enum class LeftoverFate : std::uint8_t {
  kRemove,
  /// It is a checkpoint that a save was replacing, and nothing sound has its name: it comes back,
  /// and whatever has the name is set aside (set_aside.h).
  kBringBack,
  kStay,  ///< neither it nor what has its name is sound, so there may be no better copy
};
/// Judges a leftover by find_unsound(). Throws as that does: nothing is to be removed then.
LeftoverFate fate_of(Storage& root, const HiddenSibling& leftover, const StrategySpec& strategy);
/// Does with one leftover what its fate is, whoever has made it; a warning says so unless it is
/// removed.
void remove_leftover(Storage& root, const HiddenSibling& leftover, const StrategySpec& strategy);

/// Removes, with a warning, the leftovers beside `target` of saves and conversions whose processes
/// on this host died. Leftovers of other hosts are kept. A replaced checkpoint whose successor was
/// never published, or is not sound, is restored. The attempt named `except` stays: it goes on.
void remove_dead_attempts(const Location& target, std::string_view except = {});

/// Returns the names of the hidden directories beside `target` in which interrupted saves and
/// conversions were writing it: those of processes of this host that died, and those that were
/// kept.
std::vector<std::string> unfinished_attempts(const Location& target);

/// Returns those that processes which are not visible here are writing, or have left: of another
/// host, another container, or from before this host was restarted.
std::vector<std::string> attempts_elsewhere(const Location& target);

}  // namespace dckpt
