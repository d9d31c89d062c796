#pragma once

#include <vector>

#include "dist_checkpointing/load/load.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// The casts of all ranks, sorted, each once; rank 0 logs them in one line. Collective; the same on
/// all ranks.
std::vector<CastTensor> report_casts(const std::vector<CastTensor>& mine, Communicator& comm);

}  // namespace dckpt
