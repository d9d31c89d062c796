#pragma once

#include "dist_checkpointing/save/describe_state.h"
#include "mapping/base/finding.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Under DCP's rules one rank's value of a plain leaf is stored. Warns on rank 0, and adds to its
/// `findings`, with the ranks' values, about leaves that several ranks have but with different
/// values. Collective. Fingerprints travel, and values only where these differ. Of tensors beyond
/// 64 KiB samples are compared; of those in device memory and of views with gaps, dtype and shape.
void compare_plain_leaves(const DescribedState& described, Communicator& comm, Findings& findings);

}  // namespace dckpt
