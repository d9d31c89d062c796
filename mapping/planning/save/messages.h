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

/// A local plan as bytes, for the wire: versioned, little-endian. Sizes of objects do not travel:
/// they may differ from save to save. `decode_plan` throws CheckpointError (corrupt) on anything
/// that `encode_plan` does not produce; never allocates more than a small multiple of the bytes it
/// was given.
Bytes encode_plan(const SavePlan& plan);
SavePlan decode_plan(ByteView bytes);

/// What ranks must agree on to plan together, in a byte.
std::uint8_t encode_rules(const PlannerOptions& options, bool use_replicas) noexcept;
std::string describe_rules(std::uint8_t rules);

/// What a rank sends to the coordinator: its encoded plan, or only a fingerprint of the one that
/// both remember.
struct Proposal {
  std::uint8_t rules = 0;
  bool unchanged = false;
  bool items_known = true;  ///< by the rank: what it writes of an unchanged plan
  ByteView content{};       ///< the plan, or its fingerprint
};
Bytes encode_proposal(std::uint8_t rules, ByteView plan);
Bytes encode_unchanged_proposal(std::uint8_t rules, const Fingerprint& plan, bool items_known);
/// A view of `bytes`. Throws CheckpointError (corrupt) if they are too short or say neither.
Proposal decode_proposal(ByteView bytes);
/// Whether an unchanged proposal refers to `plan`.
bool refers_to(const Proposal& proposal, const Fingerprint& plan);

/// What the coordinator sends to a rank: its items, "as last time", or that it needs the plan
/// itself instead of its fingerprint.
Bytes encode_answer(std::span<const AssignedItem> items);
Bytes encode_unchanged_answer();
Bytes encode_plan_request();
bool is_plan_request(ByteView answer);
/// Empty: as last time. Throws CheckpointError (corrupt) for a malformed answer, also one that does
/// not fit the rank's local plan.
std::optional<std::vector<AssignedItem>> decode_answer(ByteView bytes, const SavePlan& local);

}  // namespace dckpt
