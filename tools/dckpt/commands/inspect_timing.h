#pragma once

#include "tools/dckpt/commands/command.h"

namespace dckpt::tool {

/// Shows how long each phase of the save took. Returns the exit code. Throws CheckpointError
/// (incomplete) if the checkpoint holds no report of its save.
int show_timing(CheckpointArgument checkpoint, bool json);

}  // namespace dckpt::tool
