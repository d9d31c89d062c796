#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/save/describe_state.h"
#include "mapping/base/bytes.h"
#include "mapping/base/finding.h"
#include "mapping/planning/save/replicas.h"

namespace dckpt {

// The comparison of replicas. Rank 0 knows from the plans of all ranks which pieces several of them
// hold, and tells each rank its `items`; each rank answers with a hash for each.

/// Returns the message of a rank: the hashes of these items of its plan.
Bytes hash_replicas(const DescribedState& described, const SavePlan& plan,
                    std::span<const std::uint32_t> items, CheckReplicas how, int threads);

/// Called on rank 0 with the messages of all ranks. Warns of pieces that differ. Throws
/// CheckpointError (corrupt) for a malformed message.
void tell_differing_replicas(const Replicas& replicas, const std::vector<Bytes>& hashes,
                             Findings& findings);

}  // namespace dckpt
