#pragma once

#include "configs/policy/options.h"
#include "dist_checkpointing/save/describe_state.h"
#include "mapping/base/finding.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Warns on rank 0, and adds to its `findings`, about plain leaves that several ranks have with
/// different values, since under DCP's rules only one rank's value is stored. The warning has the
/// ranks' values. Collective. Only fingerprints are sent, and values if these differ.
void compare_plain_leaves(const DescribedState& described, const SaveOptions& options,
                          Communicator& comm, Findings& findings);

}  // namespace dckpt
