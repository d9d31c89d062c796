#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>

#include "dckpt/dist_checkpointing.h"

/// Returns the ranks of an MPI communicator as a dckpt::Communicator. MPI must have been
/// initialized, for background saves with MPI_THREAD_MULTIPLE. Collective over `mpi`.
std::unique_ptr<dckpt::Communicator> over_mpi(
    MPI_Comm mpi, std::chrono::milliseconds timeout = std::chrono::minutes(10));
