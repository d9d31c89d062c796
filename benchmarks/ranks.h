#pragma once

#include <functional>
#include <memory>

#include "mapping/base/bytes.h"
#include "strategies/comm/communicator.h"

namespace dckpt::bench {

/// The kinds of ranks in a measurement.
enum class RankKind {
  kThreads,    ///< threads of this process
  kProcesses,  ///< processes forked from this one, connected over sockets and shared memory
};

/// Runs `body` on all ranks concurrently and returns rank 0's result. Rank processes start with a
/// copy of this process's memory; their writes are visible only in shared memory. Throws
/// std::runtime_error if a rank fails. This process must have no other threads.
Bytes run_ranks_as(RankKind kind, int ranks, const std::function<Bytes(Communicator&)>& body);

/// Connects a rank that is a process of this machine; `port` is free there.
using Connect = std::function<std::unique_ptr<Communicator>(int port, int rank, int ranks)>;
/// Does what run_ranks_as(kProcesses) does, over another network.
Bytes run_processes(const Connect& connect, int ranks,
                    const std::function<Bytes(Communicator&)>& body);

}  // namespace dckpt::bench
