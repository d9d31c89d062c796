#pragma once

#include "tools/dckpt/command.h"

namespace dckpt::tool {

/// Shows what the phases of the save took, if the checkpoint keeps a report of it; throws
/// CheckpointError (incomplete) if it does not. Returns the exit code.
int show_timing(const CheckpointArgument& checkpoint, bool json);

}  // namespace dckpt::tool
