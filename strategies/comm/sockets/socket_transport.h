#pragma once

#include <memory>

#include "strategies/comm/point_to_point.h"
#include "strategies/comm/sockets/rendezvous.h"

namespace dckpt::sockets {

/// Returns a transport over one connection for each pair of ranks that exchange messages. `rank` is
/// this rank's in the whole job.
std::shared_ptr<Transport> socket_transport(Meeting meeting, int rank);

}  // namespace dckpt::sockets
