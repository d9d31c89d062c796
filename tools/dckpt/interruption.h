#pragma once

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <stop_token>
#include <thread>

namespace dckpt::tool {

/// While one lives, SIGINT, SIGTERM and SIGHUP ask the command to stop and to remove what it has
/// written; the same signal again ends the process at once. Signals that the process was started to
/// ignore (nohup) stay ignored. Where no thread can be started, signals do what they did before.
/// Made before other threads are, which inherit that signals go to this one's thread only.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  std::stop_token token() const { return source_.get_token(); }

  /// Runs a command; if it was stopped, says so and returns the exit code for the signal, 128 + its
  /// number.
  int run(const std::function<int()>& command);

 private:
  void watch();
  void ask_to_stop(int signal);

  std::stop_source source_;
  sigset_t watched_{};
  sigset_t before_{};
  std::atomic<int> signal_{0};
  std::atomic<bool> over_{false};
  std::jthread watcher_;
};

}  // namespace dckpt::tool
