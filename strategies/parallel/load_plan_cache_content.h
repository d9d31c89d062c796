#pragma once

#include <cstdint>

#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/planner_options.h"
#include "strategies/parallel/load_plan_cache.h"

namespace DCKPT_API dckpt {

/// The conditions that must be the same for a plan to be reused.
struct LoadPlanCache::Key {
  Bytes wanted{};            ///< parts that this rank wants, encoded
  std::uint64_t layout = 0;  ///< layout_of the checkpoint
  Exchange exchange = Exchange::kAuto;
  std::uint64_t budget = 0;
  int rank = 0;
  int ranks = 0;

  friend bool operator==(const Key&, const Key&) = default;
};

/// This rank's request, as a plan, from the last time that the ranks' shares were found to cover
/// each key.
struct LoadPlanCache::Access {
  Bytes request{};
  PlannerKind kind = PlannerKind::kMegatron;
  int rank = 0;
  int ranks = 0;

  friend bool operator==(const Access&, const Access&) = default;
};

}  // namespace dckpt
