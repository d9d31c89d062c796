#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Called now and then during long operations, from any thread, one call at a time, with the bytes
/// done so far and the total.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

/// Adds up the progress of several threads.
class ProgressCounter {
 public:
  ProgressCounter(Progress progress, std::uint64_t total)
      : progress_(std::move(progress)), total_(total) {}

  void add(std::uint64_t bytes) {
    if (!progress_) return;
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    progress_(done_, total_);
  }

 private:
  Progress progress_;
  std::uint64_t total_;
  std::uint64_t done_ = 0;
  std::mutex mutex_;
};

}  // namespace dckpt
