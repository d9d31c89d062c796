#pragma once

/// The interface for writing and registering your own planner: examples/planners has several, and
/// check_planner() (testing.h) checks them.

#include "configs/policy/strategy_options.h"
#include "dckpt/dist_checkpointing.h"
#include "dist_checkpointing/load/empty_state_dict_planner.h"
#include "dist_checkpointing/planner/load_planner.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/planner/save_planner.h"
#include "dist_checkpointing/save/state_plan.h"
#include "mapping/base/hash.h"
#include "mapping/planning/load/distribution.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plans.h"
#include "mapping/state/to_dtype.h"
