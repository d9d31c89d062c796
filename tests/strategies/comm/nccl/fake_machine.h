#pragma once

#include <cuda_runtime.h>

#include "tests/strategies/comm/nccl/fake_nccl.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>

// The internals that the two halves of the machine in fake_nccl.h share.
namespace dckpt::fake_nccl {

struct Allocation {
  std::size_t size;
  int device;  ///< -1: page-locked host memory
};

struct Fault {
  std::string function;
  int rank = -1;
  int calls_left = 0;
  bool fired = false;
};

struct Machine {
  std::mutex mutex;
  std::condition_variable changed;
  int devices = 0;
  std::set<int> contexts;
  std::map<const std::byte*, Allocation> memory;
  std::map<const std::byte*, Copied> copied;
  std::set<cudaStream_t> streams;
  int events = 0;
  int comms = 0;
  Fault fault;
  std::map<int, std::string> broken;
  std::string misuse;
  bool takes_ordinary_memory = false;
  int ids = 0;
};

extern Machine machine;
extern thread_local int this_rank;
extern thread_local int this_device;

void note_misuse(const std::string& text);

/// Returns whether the fault of this function is due in this thread.
bool fails(const char* function);

/// Returns the device that holds all of these bytes, -1 for page-locked memory, -2 for other
/// memory.
int place_of(const void* memory, std::size_t size);

/// Requires the machine's mutex.
bool is_idle(int device);

/// Counts a copy for its source and target allocations.
void count_copy(const void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);

}  // namespace dckpt::fake_nccl

struct CUstream_st {
  int device;
  std::deque<std::function<void()>> work;  ///< guarded by the machine's mutex, as `busy`
  bool busy = false;
  std::jthread worker{[this](const std::stop_token& stop) { run(stop); }};

  void run(const std::stop_token& stop) {
    std::unique_lock lock(dckpt::fake_nccl::machine.mutex);
    while (true) {
      dckpt::fake_nccl::machine.changed.wait(
          lock, [&] { return stop.stop_requested() || !work.empty(); });
      if (work.empty()) return;
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      busy = true;
      lock.unlock();
      next();
      lock.lock();
      busy = false;
      dckpt::fake_nccl::machine.changed.notify_all();
    }
  }

  void enqueue(std::function<void()> next) {
    const std::scoped_lock lock(dckpt::fake_nccl::machine.mutex);
    work.push_back(std::move(next));
    dckpt::fake_nccl::machine.changed.notify_all();
  }
};
