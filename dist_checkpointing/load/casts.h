#pragma once

#include <vector>

#include "dist_checkpointing/load/load.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Returns the casts of all ranks, sorted and without duplicates, the same on all ranks. Rank 0
/// logs them in one line. Collective.
std::vector<CastTensor> report_casts(const std::vector<CastTensor>& mine, Communicator& comm);

}  // namespace dckpt
