#pragma once

#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

namespace dckpt::testing {

/// Returns the bytes of the heap in use; 0 under AddressSanitizer, which has a heap of its own.
inline std::uint64_t memory_in_use() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

/// Samples memory_in_use() continuously until asked for its peak.
class MemoryPeak {
 public:
  std::uint64_t bytes() {
    sampler_ = {};
    return peak_;
  }

 private:
  std::atomic<std::uint64_t> peak_{memory_in_use()};
  std::jthread sampler_{[this](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      const std::uint64_t now = memory_in_use();
      if (now > peak_) peak_ = now;
    }
  }};
};

/// Returns the bytes that this process has read from files, whether cached or not.
inline std::uint64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  for (std::string name; io >> name;) {
    std::uint64_t value = 0;
    io >> value;
    if (name == "rchar:") return value;
  }
  return 0;
}

}  // namespace dckpt::testing
