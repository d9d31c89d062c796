#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>

#include "mapping/base/api.h"
#include "strategies/comm/communicator.h"

struct ncclComm;  // NCCL's communicator

namespace DCKPT_API dckpt {

struct NcclOptions {
  /// The limit of each operation, and of connecting.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// The memory for bytes in transit, for each direction: this much device memory, and as much
  /// page-locked host memory. At least 8 MiB. Longer buffers are sent in pieces.
  std::size_t staging = std::size_t{16} << 20;
};

// Communicators over NCCL, for jobs whose ranks are only connected by the network of their GPUs.
// Buffers are staged through the memory of `device`, the CUDA number of the GPU that this rank has
// to itself. Operations use a separate stream, wait for no other work, and may run concurrently
// with training. A communicator can be used from any thread, one at a time; it does not change the
// thread's current device or capture mode.
//
// When ranks load together (LoadOptions::parallel, all_to_all or auto), tensors in memory of
// `device` are sent from there and received there, through the device's half of the staging only.
// This needs register_cuda() of <dckpt/cuda.h>, as all loads into GPU memory do.
//
// No call blocks longer than the timeout: NCCL's communicator is made non-blocking and polled.
// After the timeout, or when a connection breaks, it is aborted, and CheckpointError (unavailable)
// names the ranks that were waited for. It is also aborted, with (io), when a call of NCCL or CUDA
// fails. If one message waits for several ranks, NCCL does not say which one is missing. Every
// later call throws the same error.
//
// NCCL's messages have no tags, so split() makes a new connection, with its own staging, for each
// group of two or more ranks; groups can be used by other threads than this communicator. All ranks
// must destroy the communicators that they made together: this waits, within the timeout, until the
// others need nothing more from this one.

/// The id by which ranks find each other.
using NcclId = std::array<std::byte, 128>;

/// Returns an id, which one rank makes and sends to all; valid for one communicator. Throws
/// CheckpointError (io).
NcclId nccl_unique_id();

/// Connects `size` ranks that have the same id. Collective. Throws CheckpointError: (invalid
/// argument), (unavailable), (io).
std::unique_ptr<Communicator> nccl_communicator(const NcclId& id, int rank, int size, int device,
                                                const NcclOptions& options = {});

/// Connects the ranks of another communicator, which distributes the id and is not needed
/// afterwards. A rank without memory for staging is an error on all ranks.
std::unique_ptr<Communicator> nccl_communicator(Communicator& bootstrap, int device,
                                                const NcclOptions& options = {});

/// Takes over a communicator that the trainer has made for this purpose, for instance by
/// ncclCommSplit. It must not be used for anything else. The returned communicator destroys it, or
/// aborts it after a failure. If this function throws, it stays the caller's. It should be
/// non-blocking (ncclConfig_t): a blocking one connects two ranks at their first message without a
/// deadline. Not collective.
std::unique_ptr<Communicator> nccl_communicator(ncclComm* comm, const NcclOptions& options = {});

}  // namespace dckpt
