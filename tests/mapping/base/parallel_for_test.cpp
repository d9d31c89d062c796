#include "mapping/base/parallel_for.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <vector>

namespace {

std::atomic<int> threads_left{1 << 30};

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Replaces the system's function, so that a test can run out of threads.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  if (threads_left-- <= 0) return EAGAIN;
  static const auto system =
      reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return system(thread, attributes, start, argument);
}
#endif

namespace dckpt::parallel_for_test {
namespace {

TEST(ParallelFor, CallsEachOnceHoweverManyThreadsTheSystemStarts) {
  for (const int available : {0, 1, 100}) {
    threads_left = available;
    std::vector<std::atomic<int>> calls(1000);
    parallel_for(calls.size(), 8, [&](std::size_t i) { ++calls[i]; });
    threads_left = 1 << 30;
    for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
  }
}

}  // namespace
}  // namespace dckpt::parallel_for_test
