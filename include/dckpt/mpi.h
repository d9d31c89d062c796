#pragma once

/// The whole library, and communicators over MPI. Link dckpt::mpi.

#include "dckpt/dist_checkpointing.h"
#include "strategies/comm/mpi/communicator.h"
