#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>

#include "strategies/storage/storage.h"

namespace dckpt {

/// A token bucket: limits how many bytes all its users read in a second. It is never fuller than
/// the tokens of a quarter of a second, and a read that is larger than that leaves it in debt, for
/// which the next one waits.
class ReadRate {
 public:
  /// `bytes_per_second` 0: no limit.
  explicit ReadRate(std::uint64_t bytes_per_second, std::stop_token stop = {})
      : rate_(static_cast<double>(bytes_per_second)), stop_(std::move(stop)) {}

  bool is_limited() const noexcept { return rate_ > 0; }
  /// Waits until the bytes may be read. Throws CheckpointError (cancelled) once a stop has been
  /// requested.
  void wait_for(std::uint64_t bytes);

 private:
  using Clock = std::chrono::steady_clock;
  const double rate_;
  const std::stop_token stop_;
  std::mutex mutex_;
  std::condition_variable_any stopped_;
  Clock::time_point free_ = Clock::now();  ///< when all tokens are back that have been taken
};

/// Passes everything through to `storage`; reads of its files wait for `rate`.
std::shared_ptr<Storage> throttled_storage(std::shared_ptr<Storage> storage,
                                           std::shared_ptr<ReadRate> rate);

}  // namespace dckpt
