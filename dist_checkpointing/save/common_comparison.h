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
  std::vector<std::string> lost;  ///< paths of tensors that rank 0 lacks or that differ there
};
CommonDifference compare_common(const Value& of_rank_0, const Value& mine, int rank);

/// Only rank 0's common state is saved: warns on every rank whose state differs. A tensor that
/// differs from rank 0's, or that rank 0 lacks, would be lost, so it is a CheckpointError
/// (mismatch) on all ranks. Collective. The states are only sent if they differ.
void compare_common_states(const Value& mine, Communicator& comm);

}  // namespace dckpt
