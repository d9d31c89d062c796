#include "configs/policy/planner_names.h"

#include <algorithm>

namespace dckpt {

std::vector<PlannerName>& save_planner_names() {
  static auto* const names = new std::vector<PlannerName>;  // policies may outlive static objects
  return *names;
}

std::vector<std::string>& load_planner_names() {
  static auto* const names = new std::vector<std::string>{kStoredPlanner};
  return *names;
}

const PlannerName* find_planner_name(const std::vector<PlannerName>& names,
                                     std::string_view name) noexcept {
  const auto found = std::ranges::find(names, name, &PlannerName::name);
  return found == names.end() ? nullptr : &*found;
}

}  // namespace dckpt
