#pragma once

#include <mpi.h>

#include <chrono>
#include <memory>

#include "mapping/base/api.h"
#include "strategies/comm/communicator.h"

namespace DCKPT_API dckpt {

/// Returns a communicator of the ranks of `comm`, an intracommunicator of any MPI 3.0. Its messages
/// travel over a duplicate of `comm` and never mix with the program's. Collective over `comm`.
///
/// MPI must have been initialized with MPI_THREAD_MULTIPLE: background saves, and groups made by
/// split(), communicate from threads of their own while the program's threads use MPI. Destroy all
/// communicators and let background saves end before MPI_Finalize.
///
/// MPI knows no deadlines. Messages therefore pass through memory of this communicator, in pieces,
/// and are polled. After the timeout, receives are cancelled, memory that MPI may still access is
/// never released, and CheckpointError (unavailable) names the ranks that were waited for; the
/// communicator is unusable afterwards. MPI_Finalize would wait for the silent ranks: end the job
/// with MPI_Abort. MPI's own errors are returned, not fatal, and become CheckpointErrors (io).
///
/// Throws CheckpointError: (invalid argument) if MPI is not in a state to communicate, or `comm` or
/// the timeout is none; (unavailable) if not all ranks of `comm` call this within the timeout.
std::unique_ptr<Communicator> mpi_communicator(
    MPI_Comm comm, std::chrono::milliseconds timeout = std::chrono::minutes(10));

}  // namespace dckpt
