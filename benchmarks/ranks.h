#pragma once

#include <functional>

#include "mapping/base/bytes.h"
#include "strategies/comm/communicator.h"

namespace dckpt::bench {

/// What the ranks of a measurement are.
enum class RankKind {
  kThreads,    ///< of this process
  kProcesses,  ///< forked from this one, connected over Gloo
};

/// Whether dckpt was built with libtorch and Gloo's headers.
bool can_run_processes() noexcept;

/// Runs `body` on all ranks at once, and returns what rank 0's returned. Processes start with a
/// copy of this one's memory; what they write to is theirs unless it is shared memory. Throws
/// std::runtime_error if a rank fails. Not while this process has other threads.
Bytes run_ranks_as(RankKind kind, int ranks, const std::function<Bytes(Communicator&)>& body);

}  // namespace dckpt::bench
