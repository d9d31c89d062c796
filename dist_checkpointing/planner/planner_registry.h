#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "configs/policy/options.h"
#include "configs/policy/planner_names.h"
#include "configs/policy/strategy_options.h"
#include "dist_checkpointing/planner/load_planner.h"
#include "dist_checkpointing/planner/save_planner.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The steps whose results are checked; those of the built-in planners need no check.
struct OverriddenSteps {
  bool local_plan = true;
  bool global_plan = true;
  bool finish_plan = true;
};

/// A planner that policies choose by name. save_planner_entry() makes one from a class.
struct SavePlannerEntry {
  std::string name;   ///< name in policies: save.planner.kind
  std::string about;  ///< one line
  /// Determines how the state is described before the planner sees it, and which rules of
  /// planner.dedup and compat apply: kMegatron for planners that derive from MCoreSavePlanner, kDcp
  /// from DefaultSavePlanner, kHyperParallel from StandardSavePlanner.
  PlannerKind rules = PlannerKind::kMegatron;
  /// Makes the planner of a rank for a save. Its own options are in `planner.options`:
  /// read_options(schema, planner, kSavePlannerOptions).
  std::function<std::unique_ptr<SavePlanner>(const StrategySpec& planner)> make{};
  OverriddenSteps overrides{};
  /// Name of the load planner that turns what is stored into what was saved. The checkpoint records
  /// it, and loads without it are refused. Empty if any reader may take what is stored as it is.
  std::string read_by{};
};

/// Throws CheckpointError (invalid argument) if a planner is given options and has none.
void require_no_options(const StrategySpec& planner);

/// Returns the steps that a class overrides. The steps must be public.
template <std::derived_from<DefaultSavePlanner> Planner>
constexpr OverriddenSteps overridden_steps() {
  using LocalStep = SavePlan (DefaultSavePlanner::*)();
  using GlobalStep = GlobalPlan (DefaultSavePlanner::*)(const LocalPlans&);
  using FinishStep = SavePlan (SavePlanner::*)(SavePlan);
  using SetUp = void (DefaultSavePlanner::*)(const SaveSetup&);
  // An overridden set_up_planner() may pass on another setup, from which the built-in steps make
  // other plans.
  return {.local_plan = !std::is_same_v<decltype(&Planner::create_local_plan), LocalStep> ||
                        !std::is_same_v<decltype(&Planner::set_up_planner), SetUp>,
          .global_plan = !std::is_same_v<decltype(&Planner::create_global_plan), GlobalStep>,
          .finish_plan = !std::is_same_v<decltype(&Planner::finish_plan), FinishStep>};
}

/// Returns the entry of a final class of planners, which pays only for the steps that it overrides.
/// `make` makes a planner from its options; without it, the class has no options.
template <std::derived_from<DefaultSavePlanner> Planner>
SavePlannerEntry save_planner_entry(
    const std::string& name, const std::string& about,
    std::function<std::unique_ptr<Planner>(const StrategySpec&)> make = {}) {
  static_assert(std::is_final_v<Planner>, "a derived class might override other steps");
  if constexpr (std::is_default_constructible_v<Planner>) {
    if (!make)
      make = [](const StrategySpec& planner) {
        require_no_options(planner);
        return std::make_unique<Planner>();
      };
  }
  constexpr bool kMegatron = std::derived_from<Planner, MCoreSavePlanner>;
  constexpr bool kPlacements = std::derived_from<Planner, StandardSavePlanner>;
  SavePlannerEntry entry{.name = name,
                         .about = about,
                         .rules = kMegatron     ? PlannerKind::kMegatron
                                  : kPlacements ? PlannerKind::kHyperParallel
                                                : PlannerKind::kDcp,
                         .overrides = overridden_steps<Planner>()};
  if (make) entry.make = std::move(make);
  return entry;
}

/// The same for loads: load.planner.kind.
struct LoadPlannerEntry {
  std::string name;
  std::string about;
  /// Its own options: read_options(schema, planner, kLoadPlannerOptions).
  std::function<std::unique_ptr<LoadPlanner>(const StrategySpec& planner)> make{};
  /// True if it has a create_global_plan(), for which rank 0 gets the plans of all ranks.
  bool plans_globally = true;
};

/// Returns the entry of a final class, whose steps must be public: the plans of all ranks are
/// gathered if it overrides create_global_plan(). `make` makes a planner from its options; without
/// it, the class has no options.
template <std::derived_from<DefaultLoadPlanner> Planner>
LoadPlannerEntry load_planner_entry(
    const std::string& name, const std::string& about,
    std::function<std::unique_ptr<Planner>(const StrategySpec&)> make = {}) {
  static_assert(std::is_final_v<Planner>, "a derived class might override create_global_plan()");
  if constexpr (std::is_default_constructible_v<Planner>) {
    if (!make)
      make = [](const StrategySpec& planner) {
        require_no_options(planner);
        return std::make_unique<Planner>();
      };
  }
  using GlobalStep = std::vector<LoadPlan> (LoadPlanner::*)(std::vector<LoadPlan>);
  LoadPlannerEntry entry{
      .name = name,
      .about = about,
      .plans_globally = !std::is_same_v<decltype(&Planner::create_global_plan), GlobalStep>};
  if (make) entry.make = std::move(make);
  return entry;
}

inline constexpr const char* kSavePlannerOptions = "save.planner.options";
inline constexpr const char* kLoadPlannerOptions = "load.planner.options";

/// Registers a planner. Programs must do so before they read a policy that names one, and before
/// any thread saves or loads, because nothing is locked. A planner of the same name is replaced.
/// Throws CheckpointError (invalid argument) if name or factory is missing, or the name is that of
/// a built-in kind. A planner for saves and one for loads may share a name.
void register_planner(SavePlannerEntry entry);
void register_planner(LoadPlannerEntry entry);

std::span<const SavePlannerEntry> save_planners();
std::span<const LoadPlannerEntry> load_planners();

/// Returns the planner that `options` names, or the built-in one of its kind. Throws
/// CheckpointError (unsupported) that lists the existing ones and suggests the nearest name.
std::unique_ptr<SavePlanner> make_save_planner(const SaveOptions& options);
/// Returns SavePlannerEntry::read_by of that planner; empty unless it is registered.
std::string read_by(const SaveOptions& options);
/// Returns the overridden steps of that planner: none unless it is registered.
OverriddenSteps overridden_steps(const SaveOptions& options);
/// Returns null if `options` names none.
std::unique_ptr<LoadPlanner> make_load_planner(const LoadOptions& options);
bool plans_globally(const LoadOptions& options);

/// Returns the options with `planner.kind` set to the registered planner's rules. Invalid options
/// are left to make_save_planner().
[[nodiscard]] SaveOptions with_planner_rules(SaveOptions options);

}  // namespace dckpt
