#pragma once

#include <string>
#include <vector>

#include "mapping/base/finding.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Differences between a rank's common state and rank 0's. Dicts are compared by key, lists and
/// tuples by position.
struct CommonDifference {
  std::string text;  ///< "'lr' is 1, not 0.1; 'seed' is missing"; empty if there are none
  std::vector<std::string> lost;  ///< names of tensors that rank 0 lacks or that differ there
};
CommonDifference compare_common(const Value& of_rank_0, const Value& mine);

/// Compares the common states, of which only rank 0's is saved: a warning of rank 0, which is added
/// to its `findings`, says which ranks' states differ, and where. A tensor that differs from rank
/// 0's, or that rank 0 lacks, would be lost, so it is a CheckpointError (mismatch) on all ranks.
/// Collective. The states are only sent if they differ.
void compare_common_states(const Value& mine, Communicator& comm, Findings& findings);

}  // namespace dckpt
