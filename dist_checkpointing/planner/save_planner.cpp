#include "dist_checkpointing/planner/save_planner.h"

#include "dist_checkpointing/planner/no_setup.h"
#include "dist_checkpointing/planner/planner_kind.h"

namespace dckpt {

PlannerKind planner_kind(const SaveOptions& options) noexcept {
  return options.compat == Compat::kDcp && options.planner.kind == PlannerKind::kMegatron
             ? PlannerKind::kDcp
             : options.planner.kind;
}

SavePlan create_default_local_save_plan(const SaveSetup& setup) {
  return plan_local_save(setup.shards, setup.options.flattened);
}

GlobalPlanOptions global_plan_options(const SaveOptions& options) {
  PlannerOptions planner = options.planner;
  planner.kind = planner_kind(options);
  return {.kind = planner.kind,
          .dedup = planner.effective_dedup(),
          .use_replicas = options.parallel.enabled,
          .split_replicas = planner.split_replicas,
          .validate = planner.validate};
}

void DefaultSavePlanner::set_up_planner(const SaveSetup& setup) {
  setup_.emplace(setup);
  rank_ = setup.rank;
  ranks_ = setup.ranks;
  global_ = global_plan_options(setup.options);
}

const SaveSetup& DefaultSavePlanner::setup() const {
  if (!setup_) throw_no_setup();
  return *setup_;
}

SavePlan DefaultSavePlanner::create_local_plan() {
  return create_default_local_save_plan(setup());
}

GlobalPlan DefaultSavePlanner::create_global_plan(const LocalPlans& plans) {
  GlobalPlanOptions options = global_;
  options.choose_writers = [this](std::span<WriterChoice> parts) { choose_writers(parts); };
  return create_default_global_save_plan(plans, options);
}

}  // namespace dckpt
