#pragma once

#include <cstdint>

#include "configs/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/planner_options.h"
#include "strategies/parallel/load_plan_cache.h"

namespace DCKPT_API dckpt {

/// What must be the same for a plan to be used again.
struct LoadPlanCache::Key {
  Bytes wanted{};            ///< of this rank
  std::uint64_t layout = 0;  ///< layout_of the checkpoint
  Exchange exchange = Exchange::kAuto;
  std::uint64_t budget = 0;
  int rank = 0;
  int ranks = 0;

  friend bool operator==(const Key&, const Key&) = default;
};

/// What this rank has asked for, as a plan, when the ranks' shares were last found to cover each
/// key.
struct LoadPlanCache::Access {
  Bytes request{};
  PlannerKind kind = PlannerKind::kMegatron;
  int rank = 0;
  int ranks = 0;

  friend bool operator==(const Access&, const Access&) = default;
};

}  // namespace dckpt
