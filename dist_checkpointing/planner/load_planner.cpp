#include "dist_checkpointing/planner/load_planner.h"

namespace dckpt {

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
