#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/planning/planner_options.h"

namespace DCKPT_API dckpt {

/// A registered planner that a policy may name as save.planner.kind, like the built-in kinds.
struct PlannerName {
  std::string name;
  /// The rules by which the state is described.
  PlannerKind rules = PlannerKind::kMegatron;
};

/// The built-in load planner that takes what is stored as it is, even if the checkpoint names
/// another one.
inline constexpr const char* kStoredPlanner = "stored";

/// The planners that policies may name; register_planner() adds them to the built-in one that takes
/// what is stored as it is. Nothing is locked.
std::vector<PlannerName>& save_planner_names();
std::vector<std::string>& load_planner_names();

const PlannerName* find_planner_name(const std::vector<PlannerName>& names,
                                     std::string_view name) noexcept;

}  // namespace dckpt
