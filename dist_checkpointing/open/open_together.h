#pragma once

#include <functional>
#include <string>

#include "strategies/comm/communicator.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Opens a checkpoint on all ranks and reads its files on one: runs `open` with a location, first
/// on rank 0, then on the others, which get the bytes that rank 0 has read if their files are the
/// same. The location and everything opened from it stay valid and read the files afterwards.
/// `open` must not use the communicator, and may fail on any rank: then every rank throws the same
/// CheckpointError. If `open` reads other sources, it can pass the result on as `note`: the other
/// ranks get the note that rank 0 has left. Collective.
void open_together(const Location& location, Communicator& comm,
                   const std::function<void(const Location&, std::string& note)>& open);

}  // namespace dckpt
