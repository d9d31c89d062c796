#include "strategies/comm/heartbeat.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/phase_label.h"

namespace dckpt {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLongestSilence{500};  // so that progress and cancellation feel prompt
constexpr int kSignsPerTimeout = 4;
constexpr std::size_t kMostNamed = 4;

milliseconds silence(const Communicator& comm) {
  return std::clamp(comm.timeout() / kSignsPerTimeout, milliseconds(1), kLongestSilence);
}

std::string time_text(milliseconds time) {
  const bool whole = time % std::chrono::seconds(1) == milliseconds(0);
  return whole ? std::to_string(time.count() / 1000) + " s" : std::to_string(time.count()) + " ms";
}

std::string amount(std::uint64_t done, std::uint64_t total) {
  return str_format("{} of {}", human_bytes(done), human_bytes(total));
}

}  // namespace

/// Runs the work in its own thread. The destructor waits for the work.
class Heartbeat::Worker {
 public:
  explicit Worker(const std::function<void()>& work) {
    const auto run = [this, &work] {
      std::optional<CheckpointError> failure = failure_of(work);
      const std::lock_guard lock(mutex_);
      failure_ = std::move(failure);
      ended_ = true;
      changed_.notify_all();
    };
    try {
      thread_ = std::jthread(run);
    } catch (const std::system_error&) {
      run();
    }
  }

  /// Waits for at most `time`. Returns whether the work has ended, and stores its error, if any, in
  /// `failure`.
  bool ended_within(milliseconds time, std::optional<CheckpointError>& failure) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, time, [&] { return ended_; })) return false;
    failure = failure_;
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::optional<CheckpointError> failure_{};
  std::jthread thread_;  // last, since it must be joined before the other members are destroyed
};

Heartbeat::Heartbeat(Communicator& comm, Options options)
    : comm_(comm), options_(std::move(options)) {}

void Heartbeat::agree(const std::string& what, const std::function<void()>& work) {
  Worker worker(work);
  Sign mine;
  std::optional<CheckpointError> failure;
  const auto all_ended = [&] { return std::ranges::all_of(signs_, &Sign::ended); };
  try {
    do {
      const bool ended = worker.ended_within(silence(comm_), failure);
      mine = sign(ended, failure);
      exchange(mine, what);
      decide(what);
      report();
    } while (!all_ended() && std::ranges::none_of(signs_, &Sign::leaves));
  } catch (...) {  // nobody can be told any more
    stop(current_error());
    throw;
  }
  if (std::ranges::any_of(signs_, &Sign::failed))
    dckpt::agree(comm_, what, mine.failed ? failure : std::nullopt);
  if (all_ended() && std::ranges::none_of(signs_, &Sign::halted)) return;
  if (reason_) throw *reason_;
  throw_error(
      ErrorCode::kCorrupt,
      what + ": a rank says that it was stopped, but none has a reason to: check the Communicator");
}

Heartbeat::Sign Heartbeat::sign(bool ended, const std::optional<CheckpointError>& failure) const {
  const auto now = Clock::now();
  Sign mine{.ended = ended, .done = done_.load(std::memory_order_relaxed), .total = total_};
  // The work may have noticed the cancellation request itself.
  mine.cancelled = options_.cancel.stop_requested();
  mine.halted = failure && (stopped_ || mine.cancelled) && failure->code() == ErrorCode::kCancelled;
  mine.failed = failure && !mine.halted;
  // Compared in milliseconds, since the largest limits exceed what nanoseconds can hold.
  const auto has_passed = [now](Clock::time_point since, milliseconds limit) {
    return std::chrono::floor<milliseconds>(now - since) >= limit;
  };
  mine.expired = options_.timeout > milliseconds(0) && has_passed(begin_, options_.timeout);
  mine.leaves = stopped_ && has_passed(stopped_at_, comm_.timeout());
  return mine;
}

void Heartbeat::exchange(const Sign& mine, const std::string& what) {
  try {
    const std::vector<Bytes> all = comm_.all_gather(encode(mine));
    std::vector<Sign> signs;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      signs.push_back(decode(all[rank], static_cast<int>(rank)));
    signs_ = std::move(signs);
  } catch (const CheckpointError& error) {
    const std::string last = at_work(what, "was");
    throw CheckpointError(error.code(),
                          str_format("{}: a rank gives no sign of life: {}{}", what,
                                     PhaseLabel::removed(what, error.message()),
                                     last.empty() ? "" : "; when last heard from, " + last),
                          error.context(), error.cause());
  }
}

/// All ranks come to the same decision, since they have the same signs.
void Heartbeat::decide(const std::string& what) {
  if (stopped_) return;
  const auto rank_that = [&](bool Sign::*flag, bool value) -> std::optional<int> {
    const auto found = std::ranges::find(signs_, value, flag);
    return found == signs_.end() ? std::nullopt
                                 : std::optional(static_cast<int>(found - signs_.begin()));
  };
  if (const auto failed = rank_that(&Sign::failed, true)) {
    stop({ErrorCode::kCancelled,
          str_format("{} was stopped because it failed on rank {}", what, *failed),
          {.rank = failed}});
  } else if (const auto who = rank_that(&Sign::cancelled, true)) {
    const auto [done, total] = bytes();
    stop({ErrorCode::kCancelled,
          str_format("{} was cancelled by rank {}{}", what, *who,
                     total == 0 ? "" : " after " + amount(done, total)),
          {.rank = who}});
  } else if (rank_that(&Sign::expired, true)) {
    const std::string late = at_work(what, "is");
    stop({ErrorCode::kUnavailable,
          str_format("{} did not finish within its time limit, {}{}", what,
                     time_text(options_.timeout), late.empty() ? "" : ": " + late),
          {.rank = rank_that(&Sign::ended, false)}});
  }
}

void Heartbeat::stop(CheckpointError reason) {
  if (stopped_) return;
  reason_ = std::move(reason);
  stopped_at_ = Clock::now();
  stopped_.store(true, std::memory_order_release);
}

void Heartbeat::throw_stopped() const {
  throw CheckpointError(ErrorCode::kCancelled, reason_->message(), reason_->context());
}

void Heartbeat::report() {
  if (!options_.progress) return;
  if (const auto failure = failure_of([&] { std::apply(options_.progress, bytes()); })) {
    log_warning("the progress callback failed and is not called again: " + failure->message());
    options_.progress = nullptr;
  }
}

/// Returns the bytes done and the total bytes of all ranks.
std::pair<std::uint64_t, std::uint64_t> Heartbeat::bytes() const {
  std::pair<std::uint64_t, std::uint64_t> sum{0, 0};
  for (const Sign& sign : signs_) {
    sum.first += sign.done;
    sum.second += sign.total;
  }
  return sum;
}

/// Returns for example "rank 3 is still writing the data files (3.1 GiB of 12.0 GiB)"; empty if no
/// rank is at work.
std::string Heartbeat::at_work(const std::string& what, const char* is) const {
  std::string text;
  std::size_t ranks = 0;
  for (std::size_t rank = 0; rank < signs_.size(); ++rank) {
    const Sign& sign = signs_[rank];
    if (sign.ended || ++ranks > kMostNamed) continue;
    text += str_format("{}{} {} still {}", text.empty() ? "rank " : ", rank ", rank, is, what);
    if (sign.total > 0) text += str_format(" ({})", amount(sign.done, sign.total));
  }
  return ranks <= kMostNamed ? text : str_format("{} and {} more ranks", text, ranks - kMostNamed);
}

Bytes Heartbeat::encode(const Sign& sign) {
  Bytes bytes;
  WireWriter writer(bytes);
  for (const bool flag :
       {sign.ended, sign.failed, sign.halted, sign.cancelled, sign.expired, sign.leaves})
    writer.number(flag ? 1 : 0);
  writer.number(sign.done);
  writer.number(sign.total);
  return bytes;
}

Heartbeat::Sign Heartbeat::decode(ByteView bytes, int rank) {
  WireReader reader(bytes, "the sign of life of rank " + std::to_string(rank));
  Sign sign;
  for (bool* const flag :
       {&sign.ended, &sign.failed, &sign.halted, &sign.cancelled, &sign.expired, &sign.leaves})
    *flag = reader.number(1) == 1;
  sign.done = reader.number();
  sign.total = reader.number();
  reader.finish();
  return sign;
}

}  // namespace dckpt
