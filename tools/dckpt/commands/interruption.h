#pragma once

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <stop_token>
#include <thread>

namespace dckpt::tool {

/// While an instance lives, SIGINT, SIGTERM and SIGHUP ask the command to stop and to remove what
/// it has written. The same signal again ends the process at once. Signals that the process was
/// started to ignore (nohup) stay ignored. If no thread can be started, signals keep their previous
/// effect. It must be created before other threads, which inherit its signal mask, so that signals
/// reach only its own thread.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  std::stop_token token() const { return source_.get_token(); }

  /// Runs a command. If a signal stopped it, reports that and returns the exit code for the signal,
  /// 128 + its number.
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
