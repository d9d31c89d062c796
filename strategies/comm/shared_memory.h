#pragma once

#include <memory>

#include "mapping/base/api.h"
#include "strategies/comm/point_to_point.h"

namespace DCKPT_API dckpt {

/// Returns a transport that sends messages between ranks of one host through shared memory, and
/// everything else over `network`. This costs two copies instead of a trip through the network's
/// threads and sockets. Two ranks set it up with the first message between them; if they cannot
/// share memory (other hosts, containers that do not see each other's processes), they stay on the
/// network. Takes 256 KiB of memory per direction and pair of ranks that communicate. `rank` is
/// this rank's in the whole job.
std::shared_ptr<Transport> with_shared_memory(std::shared_ptr<Transport> network, int rank);

}  // namespace dckpt
