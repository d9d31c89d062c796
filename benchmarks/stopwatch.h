#pragma once

#include <algorithm>
#include <chrono>

#include "benchmarks/process_stats.h"

namespace dckpt::bench {

/// Adds up wall and CPU time. The smaller counts, so that a single-threaded program is not charged
/// for other users of the machine.
class Stopwatch {
 public:
  template <typename Call>
  auto operator()(Call&& call) {
    const auto start = std::chrono::steady_clock::now();
    const double cpu = cpu_seconds();
    struct Stop {
      Stopwatch& watch;
      std::chrono::steady_clock::time_point start;
      double cpu;
      ~Stop() {
        watch.wall_ +=
            std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        watch.cpu_ += cpu_seconds() - cpu;
      }
    } const stop{*this, start, cpu};
    return call();
  }
  double seconds() const { return std::min(wall_, cpu_); }

 private:
  double wall_ = 0;
  double cpu_ = 0;
};

}  // namespace dckpt::bench
