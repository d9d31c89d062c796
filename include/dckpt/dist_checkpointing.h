#pragma once

/// Everything that a program needs to save, load and examine sharded checkpoints, without libtorch
/// (see torch.h for that). The headers below can be included one by one.

#include "dckpt/checkpointer.h"
#include "dckpt/communicator.h"
#include "dckpt/convert.h"
#include "dckpt/error.h"
#include "dckpt/inspect.h"
#include "dckpt/json.h"
#include "dckpt/load.h"
#include "dckpt/location.h"
#include "dckpt/parallel_layout.h"
#include "dckpt/policy.h"
#include "dckpt/process.h"
#include "dckpt/save.h"
#include "dckpt/state.h"
#include "dckpt/tensor.h"
#include "dckpt/transfer.h"
#include "dckpt/upkeep.h"
#include "dckpt/version.h"
