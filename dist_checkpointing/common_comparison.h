#pragma once

#include <string>

#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Where a rank's common state differs from rank 0's, in Megatron's words; empty if nowhere. Dicts are compared by key, lists and tuples by position.
std::string describe_difference(const Value& of_rank_0, const Value& mine, int rank);

/// Warns on every rank whose common state differs from rank 0's, of which alone is saved. Collective. The states travel only if they differ.
void compare_common_states(const Value& mine, Communicator& comm);

}  // namespace dckpt
