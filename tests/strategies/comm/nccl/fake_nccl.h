#pragma once

#include <cstdint>
#include <set>
#include <string>

// A machine with GPUs that are threads: the functions of NCCL and of the CUDA runtime that
// strategies/comm/nccl calls, with the rules that matter there.
//   Work on a stream is done in order by a thread of its own, later than the call that enqueues it;
//   copies must be between page-locked and device memory, unless others are allowed. A group's
//   messages move together, each when both sides' groups run; later work on the stream waits.
//   Lengths must be equal.
//   Non-blocking communicators are in progress after ncclCommInitRankConfig, until all ranks have
//   come, and after ncclGroupEnd, until they have been polled for a while: only then the group is
//   on the stream. Using one that is in progress is an error. Two ranks on one device are refused.
//   Freeing memory waits until the device is idle. Making a device current gives it a context.
//   Ranks that wait for one which aborts get ncclRemoteError; the wait for one that never comes, or
//   has left, never ends.
namespace dckpt::fake_nccl {

/// Resets the machine: idle and without faults.
void reset(int devices);

/// Assigns the calling thread to a rank, since faults are set by rank.
void bind_thread(int rank);

/// Makes a rank's `call`-th call of `function` from now on fail.
void fail(int rank, const std::string& function, int call = 1);
bool has_failed();

/// Breaks the next group of a rank after its start: an asynchronous error with this text.
void break_link(int rank, const std::string& text);

/// Allows copies to and from ordinary host memory until reset().
void take_ordinary_memory();

/// Bytes that copies have moved from and to an allocation of a device, or all of them, since
/// reset().
struct Copied {
  std::uint64_t from_host = 0;
  std::uint64_t to_host = 0;
  std::uint64_t on_device = 0;
};
Copied copied(const void* allocation = nullptr);

/// Returns whether nothing is in progress on a device.
bool idle(int device);

/// Return what was not freed, and the rules that were broken; empty if none.
std::string left_over();
std::string misuse();

/// Returns the devices that this process uses.
std::set<int> contexts();

}  // namespace dckpt::fake_nccl
