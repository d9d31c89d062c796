#pragma once

#include <functional>
#include <string>

#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Opens a checkpoint on all ranks and reads its files on one: runs `open` with a location, first
/// on rank 0, then on the others, which get what rank 0 has read if their files are the same. The
/// location and what was opened from it stay valid; they read the files from then on. `open` must
/// not use the communicator, and may fail on any rank: then every rank throws the same
/// CheckpointError. What `open` reads elsewhere can be handed on as `note`: the others find there
/// what it has left on rank 0. Collective.
void open_together(const Location& location, Communicator& comm,
                   const std::function<void(const Location&, std::string& note)>& open);

}  // namespace dckpt
