#pragma once

#include <memory>

#include "strategies/comm/point_to_point.h"

namespace dckpt {

/// Carries messages between ranks of one host through memory that they share, and everything else
/// over `network`: two copies by the processor instead of the way through the network's threads and
/// sockets. Two ranks agree on it when the first message goes between them; where the system does
/// not let them share memory (other hosts, containers that do not see each other's processes) all
/// stays on the network. Takes 256 KiB of memory per pair of ranks that talk and direction. `rank`:
/// this one's, in the whole job.
std::shared_ptr<Transport> with_shared_memory(std::shared_ptr<Transport> network, int rank);

}  // namespace dckpt
