#pragma once

/// Everything that a job needs to save and load sharded checkpoints, without libtorch (see torch.h
/// for that). What people do with checkpoints is in operations.h. The headers below can be included
/// one by one.

#include "dckpt/checkpointer.h"
#include "dckpt/communicator.h"
#include "dckpt/error.h"
#include "dckpt/load.h"
#include "dckpt/location.h"
#include "dckpt/parallel_layout.h"
#include "dckpt/policy.h"
#include "dckpt/process.h"
#include "dckpt/save.h"
#include "dckpt/state.h"
#include "dckpt/tensor.h"
#include "dckpt/verify.h"
#include "dckpt/version.h"
