#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>

#include "strategies/comm/communicator.h"

struct ncclComm;  // NCCL's

namespace dckpt {

struct NcclOptions {
  /// For each operation, and for connecting.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Bytes on their way, for each direction: as much device memory, and as much page-locked host
  /// memory. At least 8 MiB. Longer buffers travel in pieces.
  std::size_t staging = std::size_t{16} << 20;
};

// Communicators over NCCL: for jobs that have no other network between ranks than that of their
// GPUs. Buffers are staged through the memory of `device`, the CUDA number of the GPU that this
// rank has to itself. Operations go over a stream of their own and wait for no other work; they may
// run beside training. A communicator can be used from any thread, one at a time; the thread's
// current device and capture mode are left as they are.
//
// No call blocks longer than the timeout: NCCL's communicator is made non-blocking and polled.
// After the timeout, or when a connection breaks, it is aborted, and CheckpointError (unavailable)
// names the ranks that were waited for; so it is, with (io), when a call of NCCL or CUDA fails; of
// those in one message NCCL does not say which one is missing. The same error comes from every
// later call.
//
// NCCL's messages carry no tags, so split() connects each group of two and more ranks anew, with
// staging of its own; groups can be used by other threads than this communicator. All ranks destroy
// what they made together: that waits, within the timeout, until the others need nothing more from
// this one.

/// What ranks need to find each other.
using NcclId = std::array<std::byte, 128>;

/// Made by one rank, which hands it to all; it is good for one communicator. Throws CheckpointError
/// (io).
NcclId nccl_unique_id();

/// Connects `size` ranks that have the same id. Collective. Throws CheckpointError: (invalid
/// argument), (unavailable), (io).
std::unique_ptr<Communicator> nccl_communicator(const NcclId& id, int rank, int size, int device,
                                                const NcclOptions& options = {});

/// Connects the ranks of another communicator, which hands the id round and is not needed
/// afterwards. A rank without memory for staging is an error on all.
std::unique_ptr<Communicator> nccl_communicator(Communicator& bootstrap, int device,
                                                const NcclOptions& options = {});

/// Takes over a communicator that the trainer has made for this purpose, for instance by
/// ncclCommSplit: it is used for nothing else any more, and is destroyed, or aborted after a
/// failure, with what is returned. If this throws, it stays the caller's. It should be non-blocking
/// (ncclConfig_t): a blocking one connects two ranks at their first message without a deadline. Not
/// collective.
std::unique_ptr<Communicator> nccl_communicator(ncclComm* comm, const NcclOptions& options = {});

}  // namespace dckpt
