#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// A callback during long operations, from any thread, one call at a time, with the bytes done so
/// far and the total.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Adds up the progress of several threads.
class ProgressCounter {
 public:
  /// Calls `progress` each time `every` more bytes are done; 0: whenever any are added.
  ProgressCounter(Progress progress, std::uint64_t total, std::uint64_t every = 0)
      : progress_(std::move(progress)), total_(total), every_(every) {}

  void add(std::uint64_t bytes) {
    if (!progress_) return;
    const std::lock_guard lock(mutex_);
    const std::uint64_t before = std::exchange(done_, done_ + bytes);
    if (every_ == 0 || before / every_ != done_ / every_) progress_(done_, total_);
  }

 private:
  Progress progress_;
  std::uint64_t total_;
  std::uint64_t every_;
  std::uint64_t done_ = 0;
  std::mutex mutex_;
};

}  // namespace dckpt
