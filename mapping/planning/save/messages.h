#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/fingerprint.h"
#include "mapping/planning/planner_options.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"

namespace dckpt {

/// Encode and decode a local plan for the wire: versioned, little-endian. Sizes of objects do not
/// travel: they may differ from save to save. `decode_plan` throws CheckpointError (corrupt) on
/// bytes that `encode_plan` does not produce, and never allocates more than a small multiple of
/// their size.
Bytes encode_plan(const SavePlan& plan);
SavePlan decode_plan(ByteView bytes);

/// Encodes the options on which ranks must agree to plan together, in a byte.
std::uint8_t encode_rules(const PlannerOptions& options, bool use_replicas) noexcept;
std::string describe_rules(std::uint8_t rules);

/// The message of a rank to the coordinator: its encoded plan, or only a fingerprint of the plan
/// that both remember.
struct Proposal {
  std::uint8_t rules = 0;
  bool unchanged = false;
  ByteView content{};  ///< the plan, or its fingerprint
};
Bytes encode_proposal(std::uint8_t rules, ByteView plan);
Bytes encode_unchanged_proposal(std::uint8_t rules, const Fingerprint& plan);
/// Returns a view of `bytes`. Throws CheckpointError (corrupt) if they are too short or say
/// neither.
Proposal decode_proposal(ByteView bytes);
/// Returns whether an unchanged proposal refers to `plan`.
bool refers_to(const Proposal& proposal, const Fingerprint& plan);

/// The message of the coordinator to a rank: its items, or "as last time".
Bytes encode_answer(std::span<const AssignedItem> items);
Bytes encode_unchanged_answer();
/// Returns nothing for "as last time". Throws CheckpointError (corrupt) for a malformed answer,
/// also one that does not fit the rank's local plan.
std::optional<std::vector<AssignedItem>> decode_answer(ByteView bytes, const SavePlan& local);

}  // namespace dckpt
