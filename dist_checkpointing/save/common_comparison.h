#pragma once

#include <string>
#include <vector>

#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Where a rank's common state differs from rank 0's. Dicts are compared by key, lists and tuples
/// by position.
struct CommonDifference {
  std::string text;               ///< in Megatron's words; empty if nowhere
  std::vector<std::string> lost;  ///< paths of tensors that rank 0 does not have, or has otherwise
};
CommonDifference compare_common(const Value& of_rank_0, const Value& mine, int rank);

/// Of the ranks' common states rank 0's alone is saved: warns on every rank whose differs. A tensor
/// that differs from rank 0's, or that rank 0 does not have, would be lost: CheckpointError
/// (mismatch) on all ranks. Collective. The states travel only if they differ.
void compare_common_states(const Value& mine, Communicator& comm);

}  // namespace dckpt
