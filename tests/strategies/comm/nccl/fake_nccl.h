#pragma once

#include <cstdint>
#include <set>
#include <string>

// A machine with GPUs that are threads: the functions of NCCL and of the CUDA runtime that
// strategies/comm/nccl calls, with their rules as far as they matter there.
//   Work on a stream is done in order by a thread of its own, later than the call that enqueues it;
//   copies must be between page-locked and device memory, unless others are allowed. A group's messages move together, each
//   when both sides' groups run; what a stream holds behind them waits. Lengths must be equal.
//   Non-blocking communicators are in progress after ncclCommInitRankConfig, until all ranks have
//   come, and after ncclGroupEnd, until they have been polled for a while: only then the group is
//   on the stream. Using one that is in progress is an error. Two ranks on one device are refused.
//   Freeing memory waits until the device is idle. Making a device current gives it a context.
//   Ranks that wait for one which aborts get ncclRemoteError; one that never comes, or left, is
//   waited for without end.
namespace dckpt::fake_nccl {

/// An idle machine without faults.
void reset(int devices);

/// The calling thread is one of this rank's: faults are set by rank.
void bind_thread(int rank);

/// A rank's `call`-th call of `function` from now on fails.
void fail(int rank, const std::string& function, int call = 1);
bool has_failed();

/// The next group of a rank breaks after it was started: an asynchronous error with this text.
void break_link(int rank, const std::string& text);

/// From now on, until reset(), copies to and from ordinary memory of the host are no misuse.
void take_ordinary_memory();

/// Bytes that copies have moved from and to an allocation of a device, or all of them, since
/// reset().
struct Copied {
  std::uint64_t from_host = 0;
  std::uint64_t to_host = 0;
  std::uint64_t on_device = 0;
};
Copied copied(const void* allocation = nullptr);

/// Whether nothing is under way on a device.
bool idle(int device);

/// What was not freed, and the rules that were broken; empty if all is well.
std::string left_over();
std::string misuse();

/// Devices that this process uses.
std::set<int> contexts();

}  // namespace dckpt::fake_nccl
