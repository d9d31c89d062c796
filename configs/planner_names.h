#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/planning/planner_options.h"

namespace DCKPT_API dckpt {

/// What a policy may name as save.planner.kind, or load.planner.kind, besides the built-in kinds.
struct PlannerName {
  std::string name;
  /// Of a planner for saves: the rules by which the state is described.
  PlannerKind rules = PlannerKind::kMegatron;
};

/// Policies are read against these lists, which register_planner() fills; nothing is locked.
std::vector<PlannerName>& save_planner_names();
std::vector<PlannerName>& load_planner_names();

const PlannerName* find_planner_name(const std::vector<PlannerName>& names,
                                     std::string_view name) noexcept;

}  // namespace dckpt
