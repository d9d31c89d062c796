#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/progress.h"
#include "strategies/comm/communicator.h"

namespace dckpt {

/// Runs long local work of all ranks. Like agree(), but the communicator's timeout does not limit
/// the slowest rank: the work runs in a separate thread, while the calling threads report several
/// times per timeout that they are alive, and their progress. A rank that sends nothing is
/// therefore gone, however long the work takes. `Options::timeout` bounds the work.
///
/// One object serves several pieces of work, one after the other: they share the clock, the bytes
/// and the decision to stop. The ranks stop together when one has been cancelled, has run out of
/// time or has failed: threads that call add() or check() then get CheckpointError (cancelled).
class Heartbeat {
 public:
  struct Options {
    std::chrono::milliseconds timeout{0};  ///< limit of all work, from the construction on; 0: none
    std::stop_token cancel{};              ///< one rank's request is enough to stop all
    /// Receives the bytes done and the total bytes of all ranks, in the thread that calls agree().
    /// If it throws, a warning is logged and it is not called again.
    Progress progress{};
  };

  explicit Heartbeat(Communicator& comm) : Heartbeat(comm, Options()) {}
  Heartbeat(Communicator& comm, Options options);

  /// Runs `work`, which must not use the communicator. If no thread can be started, it runs in the
  /// calling one without signs of life. Collective. Every rank throws the same CheckpointError: the
  /// error of any rank, (cancelled) with the rank that requested it, or (unavailable) after the
  /// timeout, which names the ranks that are still at work. A rank whose work does not stop after
  /// one more timeout of the communicator delays only itself.
  void agree(const std::string& what, const std::function<void()>& work);

  /// Sets the amount of this rank's work. Call before agree().
  void expect(std::uint64_t bytes) { total_ = bytes; }
  /// For the working threads.
  void add(std::uint64_t bytes) {
    check();
    done_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void check() const {
    if (stopped_.load(std::memory_order_acquire)) throw_stopped();
  }

 private:
  class Worker;
  /// The state that a rank reports.
  struct Sign {
    bool ended = false;
    bool failed = false;
    bool halted = false;  ///< it has ended because it was told to stop
    bool cancelled = false;
    bool expired = false;
    bool leaves = false;  ///< it no longer waits for ranks that do not stop
    std::uint64_t done = 0;
    std::uint64_t total = 0;
  };
  static Bytes encode(const Sign& sign);
  static Sign decode(ByteView bytes, int rank);

  Sign sign(bool ended, const std::optional<CheckpointError>& failure) const;
  void exchange(const Sign& mine, const std::string& what);
  void decide(const std::string& what);
  void stop(CheckpointError reason);
  void report();
  std::pair<std::uint64_t, std::uint64_t> bytes() const;
  std::string at_work(const std::string& what, const char* is) const;
  [[noreturn]] void throw_stopped() const;

  Communicator& comm_;
  Options options_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::uint64_t total_ = 0;
  std::atomic<std::uint64_t> done_{0};
  std::vector<Sign> signs_{};  ///< latest signs of all ranks
  std::atomic<bool> stopped_{false};
  std::optional<CheckpointError> reason_{};  ///< set before stopped_
  std::chrono::steady_clock::time_point stopped_at_{};
};

}  // namespace dckpt
