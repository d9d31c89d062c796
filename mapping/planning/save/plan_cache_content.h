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
  Bytes plan{};                       ///< encoded
  std::vector<AssignedItem> items{};  ///< items that the rank writes
};

/// The plans that the coordinator remembers.
struct SavePlanCache::Global {
  std::vector<Fingerprint> fingerprints;  ///< of the encoded local plans of all ranks
  std::vector<Bytes> local_plans{};       ///< encoded
  GlobalPlan plan{};                      ///< decided from the local plans by `rules`
  std::uint8_t rules = 0;                 ///< see encode_rules()
  std::string planner{};                  ///< the planner that decided, see PlanAgreement::Decision
  std::optional<Replicas> replicas{};     ///< empty if no save has compared them
};

/// Plans of a save that has succeeded.
struct SavePlanCache::Content {
  std::optional<Local> local{};
  std::shared_ptr<const Global> global{};
};

}  // namespace dckpt
