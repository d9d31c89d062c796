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

namespace DCKPT_API dckpt {

/// Of this rank.
struct SavePlanCache::Local {
  Fingerprint fingerprint;  ///< of the encoded plan
  Bytes plan{};             ///< encoded; empty if only its fingerprint is known
  /// What it writes of it; empty if only the coordinator knows, who then has to say.
  std::optional<std::vector<AssignedItem>> items{};
};

/// Of the coordinator.
struct SavePlanCache::Global {
  std::vector<Fingerprint> fingerprints;  ///< of the encoded local plans of all ranks
  std::vector<Bytes> local_plans{};       ///< encoded; empty if only the fingerprints are known
  std::optional<GlobalPlan> plan{};       ///< decided from them by `rules`
  std::uint8_t rules = 0;                 ///< see encode_rules()
  std::string planner{};                  ///< and by this planner: PlanAgreement::Decision
};

/// Plans of a save that has succeeded, or that a checkpoint stores.
struct SavePlanCache::Content {
  std::optional<Local> local{};
  std::shared_ptr<const Global> global{};
};

}  // namespace dckpt
