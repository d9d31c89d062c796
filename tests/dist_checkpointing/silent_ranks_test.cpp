// The errors of the survivors of a job when one rank dies or fails before one of its messages, a
// sample of those in a save, a load or a resume. The network may notice the death (a connection
// breaks) or not (a machine hangs), and may keep what was sent (sockets) or not (threads). A rank
// that fails (its network card refuses) says so, and those that hear it pass it on. Every error
// names the rank and what the survivor was doing.

#include <gmock/gmock.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "mapping/base/format.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/thread_transport.h"
#include "strategies/storage/memory.h"
#include "tests/dist_checkpointing/collective_jobs.h"
#include "tests/dist_checkpointing/errors_of_survivors.h"
#include "tests/support/random.h"

namespace dckpt::testing::silent_ranks_test {
namespace {

constexpr int kRanks = 4;
constexpr std::chrono::milliseconds kTimeout{4000};  // surviving ranks are never this late

/// Delivers what was sent, including by ranks that have ended since.
class PostOffice {
 public:
  void put(int channel, int from, int to, ByteView bytes) {
    const std::lock_guard lock(mutex_);
    require_not_lost(to);
    boxes_[{channel, from, to}].emplace_back(bytes.begin(), bytes.end());
    changed_.notify_all();
  }
  void take(int channel, int from, int to, MutableByteView bytes, const Deadline& deadline) {
    std::unique_lock lock(mutex_);
    std::deque<Bytes>& box = boxes_[{channel, from, to}];
    while (box.empty()) {
      require_not_lost(from);
      if (deadline.passed())
        throw CheckpointError(ErrorCode::kUnavailable, str_format("waited {} ms for rank {}",
                                                                  deadline.timeout.count(), from));
      changed_.wait_until(lock, deadline.at);
    }
    const Bytes message = std::move(box.front());
    box.pop_front();
    if (message.size() != bytes.size())
      throw CheckpointError(ErrorCode::kInternal, "a message of another length");
    std::ranges::copy(message, bytes.begin());
  }
  void lose(int rank) {
    const std::lock_guard lock(mutex_);
    lost_.insert(rank);
    changed_.notify_all();
  }
  int new_channel() {
    const std::lock_guard lock(mutex_);
    return ++channels_;
  }

 private:
  void require_not_lost(int rank) const {
    if (lost_.contains(rank))
      throw CheckpointError(ErrorCode::kUnavailable,
                            str_format("lost the connection to rank {}", rank));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<int, int, int>, std::deque<Bytes>> boxes_;
  std::set<int> lost_;
  int channels_ = 0;
};

class PostTransport final : public Transport {
 public:
  PostTransport(PostOffice& office, int rank, int channel)
      : office_(office), rank_(rank), channel_(channel) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    for (const Outgoing& one : outgoing) office_.put(channel_, rank_, one.to, one.bytes);
    for (const Incoming& one : incoming)
      office_.take(channel_, one.from, rank_, one.bytes, deadline);
  }
  std::shared_ptr<Transport> part(std::span<const int>, Communicator& group) override {
    Bytes channel;
    if (group.rank() == 0) append_le(channel, office_.new_channel());
    return std::make_shared<PostTransport>(office_, rank_,
                                           load_le<int>(group.broadcast(channel, 0), 0));
  }

 private:
  PostOffice& office_;
  int rank_;
  int channel_;
};

enum class Fault { kNoticedDeath, kSilentDeath, kFailure };
constexpr const char* kFaults[] = {"ends, noticed,", "ends silently", "fails once"};

/// The fault of a rank: before its exchange number `at`, on every transport.
struct Death {
  int victim;
  std::uint64_t at;
  Fault fault;
  bool keeps_messages;
  std::atomic<std::uint64_t> count{0};
};

class MortalTransport final : public Transport {
 public:
  MortalTransport(std::shared_ptr<Transport> base, Death& death, std::function<void()> die)
      : base_(std::move(base)), death_(death), die_(std::move(die)) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    const std::uint64_t number = death_.count++;
    if (number == death_.at && death_.fault == Fault::kFailure)
      throw CheckpointError(ErrorCode::kIo, "the network card refuses to send");
    if (number >= death_.at && death_.fault != Fault::kFailure) {
      die_();
      throw CheckpointError(ErrorCode::kUnavailable, "this rank is dead");
    }
    base_->exchange(outgoing, incoming, deadline);
  }
  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    return std::make_shared<MortalTransport>(base_->part(members, group), death_, die_);
  }

 private:
  std::shared_ptr<Transport> base_;
  Death& death_;
  std::function<void()> die_;
};

/// Hides that threads pass memory directly, as networks of processes do not.
class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(std::shared_ptr<Transport> base) : base_(std::move(base)) {}
  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    base_->exchange(outgoing, incoming, deadline);
  }
  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    return std::make_shared<PlainTransport>(base_->part(members, group));
  }

 private:
  std::shared_ptr<Transport> base_;
};

/// Returns the errors of the survivors.
std::vector<std::string> errors_of_survivors(const CollectiveJob& job, Death& death) {
  const Location root(memory_storage("memory:"), "run");
  if (job.before) run_ranks(kRanks, [&](Communicator& comm) { job.before(root, comm); });
  ThreadNetwork threads(kRanks);
  PostOffice office;
  const auto die = [&] {
    if (death.fault != Fault::kNoticedDeath) return;
    office.lose(death.victim);
    threads.end(death.victim, "lost the connection to rank " + std::to_string(death.victim),
                nullptr);
  };
  std::vector<std::string> errors;
  std::mutex mutex;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] {
      std::shared_ptr<Transport> transport;
      if (death.keeps_messages)
        transport = std::make_shared<PostTransport>(office, rank, 0);
      else
        transport = std::make_shared<PlainTransport>(threads.transport(rank));
      if (rank == death.victim)
        transport = std::make_shared<MortalTransport>(transport, death, die);
      try {
        job.run(root, *point_to_point(transport, rank, kRanks, kTimeout));
      } catch (const CheckpointError& error) {
        const std::lock_guard lock(mutex);
        if (rank != death.victim) errors.emplace_back(error.what());
      }
    });
  }
  ranks.clear();
  return errors;
}

TEST(SilentRanks, AreNamedByAllSurvivorsWithWhatTheyWereDoing) {
  const int samples = testing::sweeps_all() ? 100 : 1;
  constexpr std::size_t kAtOnce = 6;  // they mostly wait
  Random random;
  std::size_t survivors = 0;
  std::size_t without_rank = 0;
  std::size_t without_phase = 0;
  std::deque<std::future<void>> running;
  std::mutex mutex;
  const auto join_one = [&] {
    running.front().get();
    running.pop_front();
  };
  int round = 0;
  for (const CollectiveJob& job : collective_jobs(kRanks)) {
    for (const bool keeps_messages : {false, true}) {
      for (int sample = 0; sample < 3 * samples; ++sample, ++round) {
        const int victim = static_cast<int>(random.between(0, kRanks - 1));
        Death none{victim, UINT64_MAX, Fault::kSilentDeath, keeps_messages};
        EXPECT_THAT(errors_of_survivors(job, none), ::testing::IsEmpty());
        const auto at = static_cast<std::uint64_t>(
            random.between(0, static_cast<std::int64_t>(none.count) - 1));
        const auto fault = static_cast<Fault>(sample % 3);
        const std::string trace =
            random.trace(round) +
            str_format(": {}, rank {} {} before exchange {} of {}, messages {}", job.name, victim,
                       kFaults[sample % 3], at, none.count.load(),
                       keeps_messages ? "are kept" : "need both sides");
        running.push_back(std::async(
            std::launch::async, [&, victim, at, fault, keeps_messages, trace, &job = job] {
              Death death{victim, at, fault, keeps_messages};
              const std::vector<std::string> errors = errors_of_survivors(job, death);
              const std::lock_guard lock(mutex);
              for (const std::string& error : errors) {
                ++survivors;
                if (!names_rank(error, victim)) ++without_rank;
                if (!names_phase(error)) ++without_phase;
                EXPECT_TRUE(names_rank(error, victim) && names_phase(error))
                    << trace << "\n"
                    << ::testing::PrintToString(errors);
              }
            }));
        if (running.size() >= kAtOnce) join_one();
      }
    }
    while (!running.empty()) join_one();
  }
  std::printf("%zu errors of survivors, %zu do not name the rank, %zu not what was being done\n",
              survivors, without_rank, without_phase);
  EXPECT_GT(survivors, 0U);
}

}  // namespace
}  // namespace dckpt::testing::silent_ranks_test
