#pragma once

#include <string>

#include "strategies/storage/location.h"

namespace dckpt {

/// Takes a checkpoint out of a training root: it vanishes in one step and is then removed; links
/// are not followed. A crash on the way leaves a hidden directory for remove_leftovers. Throws
/// CheckpointError (io), or (invalid argument) if `name` is no directory.
void delete_checkpoint(Storage& root, const std::string& name);

/// Removes from a training root what saves and deletions that were killed have left in it, hidden
/// names of its iterations and tracker only; a replaced checkpoint whose successor never came is
/// brought back. The caller makes sure that no other Checkpointer works in the root. What saves
/// outside of one (save(), convert) are doing there is safe as long as they run on this host. What
/// cannot be removed is named in a warning.
void remove_leftovers(const Location& root);

/// Removes what saves and conversions to `target` have left beside it when their
/// processes of this host died, and says so in a warning. What processes of other hosts have made
/// stays, and so does a replaced checkpoint whose successor never came, which is brought back.
void remove_dead_attempts(const Location& target);

}  // namespace dckpt
