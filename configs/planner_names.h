#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/planning/planner_options.h"

namespace DCKPT_API dckpt {

/// A policy may name it as save.planner.kind, as it does the built-in kinds.
struct PlannerName {
  std::string name;
  /// The state is described by these rules.
  PlannerKind rules = PlannerKind::kMegatron;
};

/// Policies are read against this list, which register_planner() fills; nothing is locked.
std::vector<PlannerName>& save_planner_names();
std::vector<std::string>& load_planner_names();

const PlannerName* find_planner_name(const std::vector<PlannerName>& names,
                                     std::string_view name) noexcept;

}  // namespace dckpt
