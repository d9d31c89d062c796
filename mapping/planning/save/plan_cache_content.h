#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/base/fingerprint.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/plan_cache.h"
#include "mapping/planning/save/replicas.h"

namespace DCKPT_API dckpt {

/// The plan of this rank.
struct SavePlanCache::Local {
  Fingerprint fingerprint;  ///< of the encoded plan
  Bytes plan{};             ///< encoded; empty if only its fingerprint is known
  /// The items that the rank writes; empty if only the coordinator knows them and must send them.
  std::optional<std::vector<AssignedItem>> items{};
};

/// The plans that the coordinator remembers.
struct SavePlanCache::Global {
  std::vector<Fingerprint> fingerprints;  ///< of the encoded local plans of all ranks
  std::vector<Bytes> local_plans{};       ///< encoded; empty if only the fingerprints are known
  std::optional<GlobalPlan> plan{};       ///< decided from the local plans by `rules`
  std::uint8_t rules = 0;                 ///< see encode_rules()
  std::string planner{};                  ///< the planner that decided, see PlanAgreement::Decision
  std::optional<Replicas> replicas{};     ///< empty if no save has compared them
};

/// Plans of a save that has succeeded, or that a checkpoint stores.
struct SavePlanCache::Content {
  std::optional<Local> local{};
  std::shared_ptr<const Global> global{};
};

}  // namespace dckpt
