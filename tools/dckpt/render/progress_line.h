#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dckpt::tool {

/// A line on stderr that shows the progress of long work: share, bytes, rate, time left. Prints
/// nothing if stderr is not a terminal or if the work is done in a moment. The destructor removes
/// the line.
class ProgressLine {
 public:
  explicit ProgressLine(std::string verb);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Updates the line. Not thread-safe.
  void update(std::uint64_t done, std::uint64_t total);

 private:
  using Clock = std::chrono::steady_clock;
  std::string verb_;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_;
};

/// Returns " 45%  1.2 GiB of 2.6 GiB  820.0 MiB/s  0:12 left".
std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds);

}  // namespace dckpt::tool
