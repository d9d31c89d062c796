#include "mapping/planning/planner_options.h"

namespace dckpt {

std::string_view to_string(PlannerKind kind) noexcept {
  return name_of(kPlannerKindNames, kind);
}
std::optional<PlannerKind> parse_planner_kind(std::string_view name) noexcept {
  return value_of(kPlannerKindNames, name);
}
std::string_view to_string(Dedup dedup) noexcept {
  return name_of(kDedupNames, dedup);
}
std::optional<Dedup> parse_dedup(std::string_view name) noexcept {
  return value_of(kDedupNames, name);
}

}  // namespace dckpt
