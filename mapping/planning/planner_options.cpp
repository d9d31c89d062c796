#include "mapping/planning/planner_options.h"

#include "mapping/base/enum_names.h"

namespace dckpt {
namespace {

constexpr EnumNames<PlannerKind, 3> kKinds{{{PlannerKind::kMegatron, "mcore"}, {PlannerKind::kDefault, "default"}, {PlannerKind::kStandard, "standard"}}};
constexpr EnumNames<Dedup, 3> kDedups{{{Dedup::kBalanced, "balanced"}, {Dedup::kLowestRank, "lowest_rank"}, {Dedup::kOff, "off"}}};

}  // namespace

std::string_view to_string(PlannerKind kind) noexcept { return name_of(kKinds, kind); }
std::optional<PlannerKind> parse_planner_kind(std::string_view name) noexcept { return value_of(kKinds, name); }
std::string_view to_string(Dedup dedup) noexcept { return name_of(kDedups, dedup); }
std::optional<Dedup> parse_dedup(std::string_view name) noexcept { return value_of(kDedups, name); }

}  // namespace dckpt
