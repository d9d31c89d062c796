#pragma once

/// Everything that a program needs to save, load and examine sharded checkpoints, without libtorch
/// (see torch.h for that).

#include "configs/policy.h"
#include "dist_checkpointing/checkpointer.h"
#include "dist_checkpointing/inspect/diff.h"
#include "dist_checkpointing/inspect/digest.h"
#include "dist_checkpointing/inspect/inspect.h"
#include "dist_checkpointing/inspect/verify.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/rewrite/remove_sharded_tensors.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "dist_checkpointing/save/seed_planner.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/geometry/tensor_map.h"
#include "mapping/state/layout_shards.h"
#include "strategies/comm/threads.h"
#include "strategies/contract/registry.h"
