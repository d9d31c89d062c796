#pragma once

/// The whole library, and communicators over NCCL. Link dckpt::nccl.

#include "dckpt/dist_checkpointing.h"
#include "strategies/comm/nccl/communicator.h"
