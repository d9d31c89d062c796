// A job with one message damaged in transit: changed, cut, repeated, swapped with another or late.
// Messages are numbered in the order in which ranks receive them, and a sample of them is damaged
// in turn, below the collectives (Transport) and above (Communicator). Nothing crashes, no rank
// waits beyond a few timeouts, and damage that is noticed is a CheckpointError.

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "strategies/comm/point_to_point.h"
#include "strategies/comm/thread_transport.h"
#include "strategies/storage/memory.h"
#include "tests/dist_checkpointing/collective_jobs.h"
#include "tests/support/random.h"

namespace dckpt::testing::damaged_messages_test {
namespace {

constexpr int kRanks = 3;
constexpr std::chrono::milliseconds kTimeout{200};
constexpr std::chrono::seconds kLongest{20};  // the machine may be busy

enum class Damage { kChanged, kCut, kRepeated, kSwapped, kLate };
constexpr Damage kDamages[] = {Damage::kChanged, Damage::kCut, Damage::kRepeated, Damage::kSwapped,
                               Damage::kLate};

/// Damages the message with number `at`, counted over all ranks.
class Striker {
 public:
  Striker(Damage damage, std::uint64_t at, Random& random)
      : damage_(damage),
        at_(at),
        where_(static_cast<std::uint64_t>(random.between(0, UINT32_MAX))) {}

  /// Passes a message of one rank; `earlier` is what the rank received before.
  void pass(MutableByteView message, Bytes& earlier) {
    const Bytes sent(message.begin(), message.end());
    if (count_++ == at_) {
      strike(message, earlier);
      struck_ = struck_ || !std::ranges::equal(sent, message);
    }
    earlier = sent;
  }
  /// Buffers can also be shortened or missing.
  void pass(std::vector<Bytes>& buffers, Bytes& earlier) {
    if (buffers.empty()) return;
    const std::uint64_t number = count_;
    Bytes& one = buffers[where_ % buffers.size()];
    if (number == at_ && damage_ == Damage::kCut) one.resize(one.size() / 2);
    if (number == at_ && damage_ == Damage::kSwapped) std::swap(one, buffers.front());
    pass(one, earlier);
  }

  std::uint64_t count() const { return count_; }
  bool struck() const { return struck_; }

 private:
  void strike(MutableByteView message, const Bytes& earlier) const {
    if (message.empty()) return;
    const std::size_t at = where_ % message.size();
    switch (damage_) {
      case Damage::kChanged: message[at] ^= std::byte(1U << (where_ >> 16U) % 8); break;
      case Damage::kCut: std::fill(message.begin() + at, message.end(), std::byte{0}); break;
      case Damage::kRepeated:
        std::copy_n(earlier.begin(), std::min(earlier.size(), message.size()), message.begin());
        break;
      case Damage::kSwapped:
        std::rotate(message.begin(), message.begin() + at, message.end());
        break;
      case Damage::kLate:
        std::this_thread::sleep_for(where_ % 4 == 0 ? 2 * kTimeout : kTimeout / 40);
    }
  }

  Damage damage_;
  std::uint64_t at_;
  std::uint64_t where_;
  std::atomic<std::uint64_t> count_{0};
  std::atomic<bool> struck_{false};
};

class DamagingTransport final : public Transport {
 public:
  DamagingTransport(std::shared_ptr<Transport> base, Striker& striker)
      : base_(std::move(base)), striker_(striker) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    base_->exchange(outgoing, incoming, deadline);
    for (const Incoming& message : incoming) striker_.pass(message.bytes, earlier_);
  }
  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    return std::make_shared<DamagingTransport>(base_->part(members, group), striker_);
  }

 private:
  std::shared_ptr<Transport> base_;
  Striker& striker_;
  Bytes earlier_;
};

/// A custom communicator over a network that damages messages.
class DamagingCommunicator final : public Communicator {
 public:
  DamagingCommunicator(std::unique_ptr<Communicator> base, Striker& striker)
      : base_(std::move(base)), striker_(striker) {}

  int rank() const noexcept override { return base_->rank(); }
  int size() const noexcept override { return base_->size(); }
  std::chrono::milliseconds timeout() const noexcept override { return base_->timeout(); }
  void barrier() override { base_->barrier(); }
  std::vector<Bytes> gather(ByteView mine, int root) override {
    return damaged(base_->gather(mine, root));
  }
  std::vector<Bytes> all_gather(ByteView mine) override { return damaged(base_->all_gather(mine)); }
  Bytes scatter(std::span<const Bytes> parts, int root) override {
    return damaged(std::vector<Bytes>{base_->scatter(parts, root)}).front();
  }
  Bytes broadcast(ByteView bytes, int root) override {
    return damaged(std::vector<Bytes>{base_->broadcast(bytes, root)}).front();
  }
  std::vector<Bytes> all_to_all(std::vector<Bytes> parts) override {
    return damaged(base_->all_to_all(std::move(parts)));
  }
  std::vector<std::int64_t> all_reduce(std::span<const std::int64_t> values, ReduceOp op) override {
    std::vector<std::int64_t> all = base_->all_reduce(values, op);
    striker_.pass(std::as_writable_bytes(std::span(all)), earlier_);
    return all;
  }
  std::unique_ptr<Communicator> split(int color) override {
    return std::make_unique<DamagingCommunicator>(base_->split(color), striker_);
  }

 private:
  std::vector<Bytes> damaged(std::vector<Bytes> buffers) {
    striker_.pass(buffers, earlier_);
    return buffers;
  }

  std::unique_ptr<Communicator> base_;
  Striker& striker_;
  Bytes earlier_;
};

struct Outcome {
  std::vector<std::string> errors;  ///< of the ranks that failed
  std::uint64_t messages = 0;
  bool struck = false;
};

Outcome run_damaged(const CollectiveJob& job, bool below, Damage damage, std::uint64_t at,
                    Random& random) {
  const Location root(memory_storage("memory:"), "run");
  if (job.before) run_ranks(kRanks, [&](Communicator& comm) { job.before(root, comm); });
  Outcome outcome;
  Striker striker(damage, at, random);
  ThreadNetwork network(kRanks);
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          std::shared_ptr<Transport> transport = network.transport(rank);
          if (below) transport = std::make_shared<DamagingTransport>(transport, striker);
          auto comm = point_to_point(transport, rank, kRanks, kTimeout);
          if (!below) comm = std::make_unique<DamagingCommunicator>(std::move(comm), striker);
          job.run(root, *comm);
        } catch (const CheckpointError& error) {
          const std::lock_guard lock(mutex);
          outcome.errors.emplace_back(error.what());
        } catch (const std::exception& error) {
          ADD_FAILURE() << "no CheckpointError: " << error.what();
        }
        network.end(rank, "rank " + std::to_string(rank) + " has ended", nullptr);
      });
    }
  }
  outcome.messages = striker.count();
  outcome.struck = striker.struck();
  return outcome;
}

TEST(DamagedMessages, AreErrorsAndNeverCrashes) {
  const std::uint64_t samples = testing::sweeps_all() ? 400 : 6;
  Random random;
  int runs = 0;
  int unnoticed = 0;
  for (const CollectiveJob& job : collective_jobs(kRanks)) {
    for (const bool below : {true, false}) {
      const std::uint64_t messages =
          run_damaged(job, below, Damage::kChanged, UINT64_MAX, random).messages;
      ASSERT_GT(messages, 10U) << job.name;
      for (const Damage damage : kDamages) {
        for (std::uint64_t sample = 0; sample < samples; ++sample, ++runs) {
          const auto at = static_cast<std::uint64_t>(
              random.between(0, static_cast<std::int64_t>(messages) - 1));
          SCOPED_TRACE(random.trace(runs) + ": " + job.name +
                       (below ? ", transport" : ", communicator") + ", damage " +
                       std::to_string(static_cast<int>(damage)) + ", message " +
                       std::to_string(at) + " of " + std::to_string(messages));
          const auto begin = std::chrono::steady_clock::now();
          const Outcome outcome = run_damaged(job, below, damage, at, random);
          EXPECT_LT(std::chrono::steady_clock::now() - begin, kLongest);
          if (outcome.struck && outcome.errors.empty()) {
            EXPECT_FALSE(below) << "nobody has noticed";
            ++unnoticed;
          }
        }
      }
    }
  }
  std::printf("%d runs, %d not noticed above the transport\n", runs, unnoticed);
}

TEST(DamagedMessages, ADifferenceThatNoRankHasIsOfTheMessages) {
  const Location root(memory_storage("memory:"), "run");
  run_ranks(kRanks, [&](Communicator& comm) {
    Random random;
    Striker striker(Damage::kChanged, 0, random);  // the same on every rank
    DamagingCommunicator damaged(comm.split(0), striker);
    try {
      save(state_at(1, comm.rank(), kRanks), root / "iter_0000001", {}, damaged);
      ADD_FAILURE() << "saved";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("did not arrive as they were sent"));
    }
  });
}

}  // namespace
}  // namespace dckpt::testing::damaged_messages_test
