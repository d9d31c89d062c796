#include "dist_checkpointing/planner/load_planner.h"

#include "dist_checkpointing/planner/no_setup.h"
#include "mapping/base/error.h"

namespace dckpt {

void throw_no_setup() {
  throw_error(ErrorCode::kInvalidArgument,
              "setup() is called before set_up_planner(), or after create_local_plan() "
              "has returned; keep in members what later steps need of it");
}

const LoadSetup& DefaultLoadPlanner::setup() const {
  if (!setup_) throw_no_setup();
  return *setup_;
}

LoadPlan create_default_local_load_plan(const LoadSetup& setup) {
  LoadPlan plan;
  plan.reserve(setup.wanted.size());
  for (const ShardedTensor& tensor : setup.wanted)
    plan.push_back({plan.size(), tensor, tensor.dtype});
  return plan;
}

LoadPlan DefaultLoadPlanner::create_local_plan() {
  return create_default_local_load_plan(setup());
}

}  // namespace dckpt
