#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace dckpt {

/// Calls body(0) … body(count − 1), each once, from up to `threads` threads, including the
/// caller's; fewer if the system cannot start more. After a call has thrown, no new one starts;
/// when all have ended, the first exception is rethrown.
template <typename Body>
void parallel_for(std::size_t count, int threads, Body&& body) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        body(i);
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        return;
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    try {
      for (std::size_t i = 1; i < std::min(count, static_cast<std::size_t>(std::max(threads, 1)));
           ++i)
        helpers.emplace_back(work);
    } catch (const std::system_error&) {  // the threads that did start do the work
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace dckpt
