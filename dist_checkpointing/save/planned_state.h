#pragma once

#include <utility>

#include "configs/policy/options.h"
#include "dist_checkpointing/planner/foreign_code.h"
#include "dist_checkpointing/planner/planner_checks.h"
#include "dist_checkpointing/planner/save_planner.h"
#include "dist_checkpointing/save/describe_state.h"
#include "mapping/base/error.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/state/value.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Runs a step of the planner. The errors of a registered planner get its name, and those of the
/// others stay as they are.
template <typename Step>
auto of_planner(const SaveOptions& options, int rank, Step&& step) {
  const std::string& name = options.registered_planner.name;
  return run_foreign(planner_text(name), name.empty() ? ErrorContext{} : ErrorContext{.rank = rank},
                     std::forward<Step>(step));
}

/// A rank's state, and its items by the planner.
struct PlannedState {
  DescribedState described;
  SavePlan items;
};

/// The data of a planned state.
ItemSources sources_of(const DescribedState& described);

struct RankOf {
  int rank = 0;
  int ranks = 1;
};

/// Describes a rank's state as its planner changes it, and plans it: the planner's steps up to
/// create_local_plan(), whose plan is checked. `options` are canonical. Throws CheckpointError.
PlannedState plan_rank(StateDict state, SavePlanner& planner, const Location& location,
                       const SaveOptions& options, RankOf rank);

}  // namespace dckpt
