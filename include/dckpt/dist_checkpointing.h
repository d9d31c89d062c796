#pragma once

/// Everything that a program needs to save, load and examine sharded checkpoints, without libtorch
/// (see torch.h for that).

#include "configs/policy.h"
#include "dist_checkpointing/checkpointer.h"
#include "dist_checkpointing/convert.h"
#include "dist_checkpointing/diff.h"
#include "dist_checkpointing/digest.h"
#include "dist_checkpointing/inspect.h"
#include "dist_checkpointing/load.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/remove_sharded_tensors.h"
#include "dist_checkpointing/save.h"
#include "dist_checkpointing/save_async.h"
#include "dist_checkpointing/seed_planner.h"
#include "dist_checkpointing/verify.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/geometry/tensor_map.h"
#include "mapping/state/layout_shards.h"
#include "strategies/comm/threads.h"
#include "strategies/registry.h"
