#pragma once

#include <functional>

#include "mapping/base/bytes.h"
#include "strategies/comm/communicator.h"

namespace dckpt::bench {

/// The kinds of ranks in a measurement.
enum class RankKind {
  kThreads,    ///< threads of this process
  kProcesses,  ///< processes forked from this one, connected over Gloo
};

/// Returns whether dckpt was built with libtorch and Gloo's headers.
bool can_run_processes() noexcept;

/// Runs `body` on all ranks concurrently and returns rank 0's result. Rank processes start with a
/// copy of this process's memory; their writes are visible only in shared memory. Throws
/// std::runtime_error if a rank fails. This process must have no other threads.
Bytes run_ranks_as(RankKind kind, int ranks, const std::function<Bytes(Communicator&)>& body);

}  // namespace dckpt::bench
