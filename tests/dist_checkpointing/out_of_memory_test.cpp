// An out-of-memory that lasts: from one allocation on, all fail, in all threads. The job ends with
// an error, not with the process. Each case is tried at allocations spread over the whole job.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>

#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "mapping/base/log.h"
#include "strategies/comm/heartbeat.h"
#include "strategies/storage/memory.h"
#include "tests/dist_checkpointing/training_run.h"

namespace {

std::atomic<std::int64_t> allocations_left{INT64_MAX};
std::atomic<bool> counts{false};

void* allocate(std::size_t size, std::size_t alignment) {
  if (counts.load() && allocations_left.fetch_sub(1) <= 0) throw std::bad_alloc();
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  void* const memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* allocate_or_null(std::size_t size) noexcept {
  try {
    return allocate(size, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate(size, alignof(std::max_align_t));
}
void* operator new[](std::size_t size) {
  return allocate(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate(size, static_cast<std::size_t>(alignment));
}
// std::stable_sort asks so, and does with less when it gets null.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate_or_null(size);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate_or_null(size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace dckpt::testing::out_of_memory_test {
namespace {

constexpr int kRanks = 2;
constexpr std::chrono::milliseconds kTimeout{300};
enum Exit : int { kDone = 0, kFailed = 1, kOtherError = 2 };

struct Job {
  std::string name;
  std::function<void(const Location& root, Communicator& comm)> run;
};

std::vector<Job> jobs() {
  return {{"save",
           [](const Location& root, Communicator& comm) {
             Checkpointer(root, {}, comm).save(state_at(2, comm.rank(), kRanks), 2);
           }},
          {"save in the background",
           [](const Location& root, Communicator& comm) {
             Policy policy;
             policy.save.async.enabled = true;
             Checkpointer checkpointer(root, policy, comm);
             checkpointer.save(state_at(2, comm.rank(), kRanks), 2);
             checkpointer.wait();
           }},
          {"load",
           [](const Location& root, Communicator& comm) {
             StateDict state = empty_state(comm.rank(), kRanks);
             (void)Checkpointer(root, {}, comm).load_latest(state);
           }},
          {"heartbeat", [](const Location&, Communicator& comm) {
             Heartbeat(comm).agree("a step", [&] {
               for (int i = 0; i < 50; ++i) Bytes(100, std::byte{1});
             });
           }}};
}

/// Runs the job in a child process whose allocations fail after `left`. Returns its exit code, or
/// minus the signal; `used` gets the number of its allocations.
int run_in_child(const Job& job, std::int64_t left, std::int64_t* used = nullptr) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) return kOtherError;
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    set_log_sink([](LogLevel, std::string_view) {});
    const Location root(memory_storage("memory:"), "run");
    run_ranks(kRanks, [&](Communicator& comm) {
      Checkpointer(root, {}, comm).save(state_at(1, comm.rank(), kRanks), 1);
    });
    std::atomic<int> outcome{kDone};
    const auto run = [&](Communicator& comm) {
      comm.barrier();
      allocations_left = left;
      counts = true;
      try {
        job.run(root, comm);
      } catch (const CheckpointError&) {
        outcome = kFailed;
      } catch (const std::bad_alloc&) {  // of an argument, before the library is called
        outcome = kFailed;
      } catch (...) {
        outcome = kOtherError;
      }
    };
    try {
      run_ranks(kRanks, run, kTimeout);
    } catch (const std::exception&) {  // without memory, no rank can say how it has ended
      if (outcome == kDone) outcome = kFailed;
    }
    counts = false;
    const std::int64_t spent = left - allocations_left;
    (void)!::write(pipe_ends[1], &spent, sizeof spent);
    ::_exit(outcome);
  }
  ::close(pipe_ends[1]);
  std::int64_t spent = 0;
  (void)!::read(pipe_ends[0], &spent, sizeof spent);
  ::close(pipe_ends[0]);
  if (used != nullptr) *used = spent;
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(OutOfMemory, ThatLastsEndsTheJobAndNotTheProcess) {
  constexpr std::int64_t kSamples = 25;
  for (const Job& job : jobs()) {
    SCOPED_TRACE(job.name);
    std::int64_t all = 0;
    ASSERT_EQ(run_in_child(job, INT64_MAX / 2, &all), kDone);
    ASSERT_GT(all, 0);
    for (std::int64_t sample = 0; sample < kSamples; ++sample) {
      const std::int64_t left = all * sample / kSamples;
      EXPECT_THAT(run_in_child(job, left), ::testing::AnyOf(kDone, kFailed))
          << "after " << left << " of " << all << " allocations";
    }
  }
}

}  // namespace
}  // namespace dckpt::testing::out_of_memory_test
