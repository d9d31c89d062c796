#pragma once

#include <vector>

#include "mapping/state/value.h"
#include "strategies/legacy_torch/joined_model.h"
#include "strategies/legacy_torch/rank_files.h"
#include "strategies/rearranged/rearranged_reader.h"

// What the ranks' files hold besides tensors of the model and its optimizer.

namespace dckpt {

/// `_extra_state` of modules and RNG states, under the keys of Megatron's sharded objects.
std::vector<RearrangedObject> joined_objects(const RankFiles& files, const JoinedModel& model);

/// What the first rank has besides its model and RNG states, in the form of distributed
/// checkpoints.
Value joined_common_state(const RankFiles& files, bool has_optimizer);

}  // namespace dckpt
