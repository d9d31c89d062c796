#include "dist_checkpointing/planner/planner_registry.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "configs/planner_names.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

std::vector<SavePlannerEntry>& registered() {
  static auto* const entries = new std::vector<SavePlannerEntry>;  // as that of the strategies
  return *entries;
}

std::unique_ptr<SavePlanner> builtin(PlannerKind kind) {
  switch (kind) {
    case PlannerKind::kMegatron: return std::make_unique<MCoreSavePlanner>();
    case PlannerKind::kDcp: return std::make_unique<DefaultSavePlanner>();
    case PlannerKind::kHyperParallel: return std::make_unique<StandardSavePlanner>();
  }
  throw CheckpointError(ErrorCode::kInternal, "a planner kind that does not exist");
}

}  // namespace

void register_planner(SavePlannerEntry entry) {
  if (entry.name.empty() || !entry.make)
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format("cannot register planner {}: name and factory are both required",
                   quote(entry.name)));
  if (parse_planner_kind(entry.name))
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("cannot register planner {}: it is a built-in kind; choose "
                                     "another name",
                                     quote(entry.name)));
  std::vector<PlannerName>& names = save_planner_names();
  std::erase_if(names, [&](const PlannerName& known) { return known.name == entry.name; });
  names.push_back({entry.name, entry.rules});
  std::erase_if(registered(),
                [&](const SavePlannerEntry& known) { return known.name == entry.name; });
  registered().push_back(std::move(entry));
}

std::span<const SavePlannerEntry> save_planners() {
  return registered();
}

std::unique_ptr<SavePlanner> make_save_planner(const SaveOptions& options) {
  const std::string& name = options.registered_planner.name;
  if (name.empty()) {
    if (!options.registered_planner.options.keys.empty())
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            "save.planner.options: are for registered planners, and none is named");
    return builtin(options.planner.kind);
  }
  const auto found = std::ranges::find(registered(), name, &SavePlannerEntry::name);
  if (found == registered().end()) {
    std::vector<std::string> names;
    for (const SavePlannerEntry& entry : registered()) names.push_back(entry.name);
    std::string message = str_format(
        "no planner {} is registered; there are: mcore, default, standard{}{}", quote(name),
        names.empty() ? "" : ", ", names.empty() ? "" : quoted_list(names, 20));
    if (const auto close = nearest(name, names))
      message += str_format(" (did you mean {}?)", quote(*close));
    throw CheckpointError(ErrorCode::kUnsupported, message);
  }
  auto planner = found->make(options.registered_planner);
  if (planner == nullptr)
    throw CheckpointError(ErrorCode::kInternal,
                          str_format("the factory of planner {} returned null", quote(name)));
  return planner;
}

SaveOptions with_planner_rules(SaveOptions options) {
  const PlannerName* const named =
      find_planner_name(save_planner_names(), options.registered_planner.name);
  if (named != nullptr) options.planner.kind = named->rules;
  return options;
}

}  // namespace dckpt
