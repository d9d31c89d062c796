#pragma once

#include <vector>

#include "mapping/state/value.h"
#include "migration/rank_folders/joined_model.h"
#include "migration/rank_folders/rank_files.h"
#include "strategies/views/rearranged_reader.h"

// The content of the ranks' files besides tensors of the model and its optimizer.

namespace dckpt {

/// Returns `_extra_state` of modules and RNG states, under the keys of Megatron's sharded objects.
std::vector<RearrangedObject> joined_objects(const RankFiles& files, const JoinedModel& model);

/// Returns the first rank's state besides its model and RNG states, in the form of distributed
/// checkpoints.
Value joined_common_state(const RankFiles& files, bool has_optimizer);

}  // namespace dckpt
