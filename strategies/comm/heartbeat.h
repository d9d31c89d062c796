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

/// Long local work of all ranks. Like agree(), but the communicator's time-out does not limit the
/// slowest rank: the work runs in a separate thread, while the calling threads report several times
/// per time-out that they are alive and how far they are. A rank that sends nothing is therefore
/// gone, however long the work takes. `Options::timeout` bounds the work.
///
/// One object for several pieces of work, one after the other: they share the clock, the bytes and
/// the decision to stop. The ranks stop together, when one has been cancelled, has run out of time
/// or has failed: what calls add() or check() then throws CheckpointError (cancelled).
class Heartbeat {
 public:
  struct Options {
    std::chrono::milliseconds timeout{0};  ///< of all work, from the construction on; 0: none
    std::stop_token cancel{};              ///< of one rank is enough to stop all
    /// Bytes of all ranks, done and in all; called in the thread that calls agree(). If it throws,
    /// that is a warning, and it is not called again.
    Progress progress{};
  };

  explicit Heartbeat(Communicator& comm) : Heartbeat(comm, Options()) {}
  Heartbeat(Communicator& comm, Options options);

  /// Runs `work`, which must not use the communicator; where no thread can be started, in the
  /// calling one and without signs of life. Collective. Every rank throws the same CheckpointError:
  /// what failed on any rank, (cancelled) with the rank that asked for it, or (unavailable) for the
  /// time-out, which names the ranks that are still at work. A rank whose work does not stop after
  /// one more time-out of the communicator keeps nobody but itself.
  void agree(const std::string& what, const std::function<void()>& work);

  /// How much work this rank has; before agree().
  void expect(std::uint64_t bytes) { total_ = bytes; }
  /// For the threads that work.
  void add(std::uint64_t bytes) {
    check();
    done_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void check() const {
    if (stopped_.load(std::memory_order_acquire)) throw_stopped();
  }

 private:
  class Worker;
  /// What a rank says of itself.
  struct Sign {
    bool ended = false;
    bool failed = false;
    bool halted = false;  ///< it has ended because it was told to stop
    bool cancelled = false;
    bool expired = false;
    bool leaves = false;  ///< it waits no longer for those that do not stop
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
  std::vector<Sign> signs_{};  ///< of all ranks, when last heard from
  std::atomic<bool> stopped_{false};
  std::optional<CheckpointError> reason_{};  ///< set before stopped_
  std::chrono::steady_clock::time_point stopped_at_{};
};

}  // namespace dckpt
