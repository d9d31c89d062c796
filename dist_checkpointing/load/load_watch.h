#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/load_hooks.h"
#include "strategies/comm/communicator.h"
#include "strategies/comm/heartbeat.h"

namespace dckpt {

/// Time limit, cancellation and progress of one load, starting with its construction.
class LoadWatch {
 public:
  /// `hooks` must outlive it.
  LoadWatch(Communicator& comm, const LoadOptions& options, const LoadHooks& hooks)
      : heartbeat(comm, {.timeout = options.timeout, .cancel = hooks.cancel}),
        timeout_(options.timeout),
        hooks_(hooks) {}

  /// Checks for cancellation within work of one rank between collectives: throws CheckpointError
  /// (cancelled) if this rank is to stop, (unavailable) if the time is over.
  void check() const;
  /// Reports how many bytes have arrived so far, and how many will. Also calls check().
  void arrived(std::uint64_t bytes, std::uint64_t total);
  bool follows_tensors() const noexcept { return static_cast<bool>(hooks_.tensor_ready); }
  void ready(const std::string& key, const Tensor& tensor);  ///< requires follows_tensors()

  Heartbeat heartbeat;

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  const std::chrono::milliseconds timeout_;
  const LoadHooks& hooks_;
  std::mutex telling_;
};

}  // namespace dckpt
