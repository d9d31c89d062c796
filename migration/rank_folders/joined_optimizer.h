#pragma once

#include <vector>

#include "mapping/planning/rearrange.h"
#include "migration/rank_folders/joined_model.h"
#include "migration/rank_folders/rank_files.h"

namespace dckpt {

/// Returns the state of the distributed optimizer (distrib_optim.pt), which is stored in the order
/// of the gradient buffers, as `optimizer.state.NAME.KEY` for each tensor of the model; empty if
/// there is none. Throws as join_ranks() does.
std::vector<RearrangedTensor> joined_optimizer(const RankFiles& files, const JoinedModel& model);

}  // namespace dckpt
