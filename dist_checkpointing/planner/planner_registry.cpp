#include "dist_checkpointing/planner/planner_registry.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "configs/policy/planner_names.h"
#include "dist_checkpointing/planner/foreign_code.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

/// Returns the registered planners of one kind; like the strategies, they are never destroyed.
template <typename Entry>
std::vector<Entry>& registered() {
  static auto* const entries = new std::vector<Entry>;
  return *entries;
}

/// Returns the same for loads, among which the built-in one is the first.
template <>
std::vector<LoadPlannerEntry>& registered<LoadPlannerEntry>() {
  class Stored final : public DefaultLoadPlanner {};
  static auto* const entries = new std::vector<LoadPlannerEntry>{
      load_planner_entry<Stored>(kStoredPlanner, "what is stored, as it is")};
  return *entries;
}

template <typename Entry>
void add(Entry entry) {
  if (entry.name.empty() || !entry.make)
    throw_error(ErrorCode::kInvalidArgument,
                "cannot register planner {}: name and factory are both required",
                quote(entry.name));
  if (parse_planner_kind(entry.name) || entry.name == kStoredPlanner)
    throw_error(ErrorCode::kInvalidArgument,
                "cannot register planner {}: it is a built-in kind; choose "
                "another name",
                quote(entry.name));
  std::erase_if(registered<Entry>(), [&](const Entry& known) { return known.name == entry.name; });
  registered<Entry>().push_back(std::move(entry));
}

/// Returns the entry of the planner's name. `names` lists the built-in kinds.
template <typename Entry>
const Entry& find_entry(const StrategySpec& planner, std::vector<std::string> names) {
  const std::vector<Entry>& entries = registered<Entry>();
  const auto found = std::ranges::find(entries, planner.name, &Entry::name);
  if (found == entries.end() && std::ranges::find(names, planner.name) != names.end())
    throw_error(ErrorCode::kInvalidArgument,
                "the planner {} is built in, not registered; name it in "
                "SaveOptions::planner (save.planner.kind)",
                quote(planner.name));
  if (found == entries.end()) {
    for (const Entry& entry : entries) names.push_back(entry.name);
    std::string message =
        str_format("no planner {} is registered; there are: {}", quote(planner.name),
                   names.empty() ? "none" : quoted_list(names, 20));
    if (const auto close = nearest(planner.name, names))
      message += str_format(" (did you mean {}?)", quote(*close));
    throw_error(ErrorCode::kUnsupported, message);
  }
  return *found;
}

const SavePlannerEntry& find_save_planner(const StrategySpec& planner) {
  return find_entry<SavePlannerEntry>(planner, {"mcore", "default", "standard"});
}

auto make(const auto& entry, const StrategySpec& planner) {
  auto made = [&] {
    try {
      return entry.make(planner);
    } catch (const CheckpointError&) {  // about its options, which it names
      throw;
    } catch (...) {
      throw_as_foreign("the factory of " + planner_text(planner.name), {});
    }
  }();
  if (made == nullptr)
    throw_error(ErrorCode::kInternal, "the factory of planner {} returned null",
                quote(planner.name));
  return made;
}

std::unique_ptr<SavePlanner> builtin(PlannerKind kind) {
  switch (kind) {
    case PlannerKind::kMegatron: return std::make_unique<MCoreSavePlanner>();
    case PlannerKind::kDcp: return std::make_unique<DefaultSavePlanner>();
    case PlannerKind::kHyperParallel: return std::make_unique<StandardSavePlanner>();
  }
  throw_error(ErrorCode::kInternal, "a planner kind that does not exist");
}

}  // namespace

void require_no_options(const StrategySpec& planner) {
  if (planner.options.empty()) return;
  throw_error(ErrorCode::kInvalidArgument,
              "the planner {} has no options, but {} is given; leave it out", quote(planner.name),
              quote(planner.options.names().front()));
}

void register_planner(SavePlannerEntry entry) {
  const PlannerName name{entry.name, entry.rules};
  add(std::move(entry));
  std::vector<PlannerName>& names = save_planner_names();
  std::erase_if(names, [&](const PlannerName& known) { return known.name == name.name; });
  names.push_back(name);
}

void register_planner(LoadPlannerEntry entry) {
  const std::string name = entry.name;
  add(std::move(entry));
  std::vector<std::string>& names = load_planner_names();
  if (std::ranges::find(names, name) == names.end()) names.push_back(name);
}

std::span<const SavePlannerEntry> save_planners() {
  return registered<SavePlannerEntry>();
}

std::span<const LoadPlannerEntry> load_planners() {
  return registered<LoadPlannerEntry>();
}

std::unique_ptr<SavePlanner> make_save_planner(const SaveOptions& options) {
  if (!options.registered_planner.name.empty())
    return make(find_save_planner(options.registered_planner), options.registered_planner);
  if (!options.registered_planner.options.empty())
    throw_error(ErrorCode::kInvalidArgument,
                "save.planner.options: are for registered planners, and none is named");
  return builtin(options.planner.kind);
}

std::string read_by(const SaveOptions& options) {
  if (options.registered_planner.name.empty()) return "";
  return find_save_planner(options.registered_planner).read_by;
}

OverriddenSteps overridden_steps(const SaveOptions& options) {
  if (options.registered_planner.name.empty()) return {false, false, false};
  return find_save_planner(options.registered_planner).overrides;
}

std::unique_ptr<LoadPlanner> make_load_planner(const LoadOptions& options) {
  if (!options.registered_planner.name.empty())
    return make(find_entry<LoadPlannerEntry>(options.registered_planner, {}),
                options.registered_planner);
  if (!options.registered_planner.options.empty())
    throw_error(ErrorCode::kInvalidArgument,
                "load.planner.options: are for registered planners, and none is named");
  return nullptr;
}

bool plans_globally(const LoadOptions& options) {
  return !options.registered_planner.name.empty() &&
         find_entry<LoadPlannerEntry>(options.registered_planner, {}).plans_globally;
}

SaveOptions with_planner_rules(SaveOptions options) {
  const PlannerName* const named =
      find_planner_name(save_planner_names(), options.registered_planner.name);
  if (named != nullptr) options.planner.kind = named->rules;
  return options;
}

}  // namespace dckpt
