#include "strategies/comm/threads.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"
#include "strategies/comm/reduce.h"

namespace dckpt {
namespace {

// Longer ones would overflow the clock.
constexpr std::chrono::hours kLongestTimeout{24 * 365};

/// An error that only reports another rank's failure; run_ranks prefers to report the original.
class PeerFailure final : public CheckpointError {
 public:
  PeerFailure(const std::string& what, std::string obstacle, int rank)
      : CheckpointError(ErrorCode::kUnavailable, what + " cannot be completed: " + obstacle,
                        {.rank = rank}),
        obstacle_(std::move(obstacle)) {}

  const std::string& obstacle() const noexcept { return obstacle_; }

 private:
  std::string obstacle_;
};

/// What the threads of one run_ranks share. One mutex and one condition for all groups: ranks are
/// few, messages are plain memory.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<int, std::string> ended;  ///< ranks whose body is over, and how

  void end(int rank, std::string how) {
    const std::lock_guard lock(mutex);
    ended.emplace(rank, std::move(how));
    changed.notify_all();
  }
};

struct Group;

/// One collective operation of a group. When it is complete it no longer changes, except that a
/// buffer meant for one rank may be moved out by that rank.
struct Round {
  std::string what;
  std::map<int, std::vector<Bytes>> brought;  ///< by rank in the group
  /// Of a split, by colour; guarded by the world's mutex.
  std::map<int, std::shared_ptr<Group>> groups;
};

/// Ranks that communicate; guarded by the world's mutex.
struct Group {
  World& world;
  std::vector<int> members;                                  ///< world ranks in group rank order
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds{};  ///< unfinished ones, by number
  std::string failure{};                                     ///< why it is unusable

  bool complete(const Round& round) const { return round.brought.size() == members.size(); }

  /// World ranks that have not come.
  std::vector<int> missing(const Round& round) const {
    std::vector<int> ranks;
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (!round.brought.contains(static_cast<int>(i))) ranks.push_back(members[i]);
    }
    return ranks;
  }

  /// Why the round can never be complete; empty while it still can.
  std::string obstacle(const Round& round) const {
    if (!failure.empty() || world.ended.empty()) return failure;
    for (const int rank : missing(round)) {
      if (const auto found = world.ended.find(rank); found != world.ended.end())
        return found->second;
    }
    return {};
  }
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank, std::chrono::milliseconds timeout)
      : group_(std::move(group)), rank_(rank), timeout_(timeout) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(group_->members.size()); }
  std::chrono::milliseconds timeout() const noexcept override { return timeout_; }

  void barrier() override { meet("barrier", {}); }

  std::vector<Bytes> gather(ByteView mine, int root) override {
    check_root(*this, root);
    const auto round =
        meet("gather to rank " + std::to_string(root), {Bytes(mine.begin(), mine.end())});
    std::vector<Bytes> all;
    if (rank_ != root) return all;
    for (auto& [sender, parts] : round->brought) all.push_back(std::move(parts.front()));
    return all;
  }

  std::vector<Bytes> all_gather(ByteView mine) override {
    const auto round = meet("all_gather", {Bytes(mine.begin(), mine.end())});
    std::vector<Bytes> all;
    for (const auto& [sender, parts] : round->brought) all.push_back(parts.front());
    return all;
  }

  Bytes scatter(std::span<const Bytes> parts, int root) override {
    check_root(*this, root);
    const auto round =
        meet("scatter from rank " + std::to_string(root),
             rank_ == root ? std::vector<Bytes>(parts.begin(), parts.end()) : std::vector<Bytes>{});
    return take_part(*round, root);
  }

  Bytes broadcast(ByteView bytes, int root) override {
    check_root(*this, root);
    const auto round = meet("broadcast from rank " + std::to_string(root),
                            {rank_ == root ? Bytes(bytes.begin(), bytes.end()) : Bytes{}});
    return round->brought.at(root).front();
  }

  std::vector<Bytes> all_to_all(std::vector<Bytes> parts) override {
    const auto round = meet("all_to_all", std::move(parts));
    std::vector<Bytes> all;
    for (int sender = 0; sender < size(); ++sender) all.push_back(take_part(*round, sender));
    return all;
  }

  std::vector<std::int64_t> all_reduce(std::span<const std::int64_t> values, ReduceOp op) override {
    const ByteView view = std::as_bytes(values);
    const auto round = meet("all_reduce", {Bytes(view.begin(), view.end())});
    std::vector<std::int64_t> result;
    for (const auto& [sender, parts] : round->brought) {
      std::vector<std::int64_t> others(parts.front().size() / sizeof(std::int64_t));
      if (!others.empty()) std::memcpy(others.data(), parts.front().data(), parts.front().size());
      if (sender == 0) {
        result = std::move(others);
        continue;
      }
      if (others.size() != result.size()) {
        throw misuse("all_reduce: rank 0 passed " + std::to_string(result.size()) +
                     " values, rank " + std::to_string(sender) + " " +
                     std::to_string(others.size()));
      }
      reduce_into(result, others, op);
    }
    return result;
  }

  std::unique_ptr<Communicator> split(int colour) override {
    Bytes mine;
    append_le(mine, colour);
    const auto round = meet("split", {std::move(mine)});
    std::vector<int> members;
    int new_rank = 0;
    for (const auto& [sender, parts] : round->brought) {
      if (load_le<int>(parts.front(), 0) != colour) continue;
      if (sender == rank_) new_rank = static_cast<int>(members.size());
      members.push_back(group_->members[static_cast<std::size_t>(sender)]);
    }
    const std::lock_guard lock(group_->world.mutex);
    std::shared_ptr<Group>& group = round->groups[colour];
    if (!group) group = std::make_shared<Group>(Group{group_->world, std::move(members)});
    return std::make_unique<ThreadCommunicator>(group, new_rank, timeout_);
  }

 private:
  int world_rank() const { return group_->members[static_cast<std::size_t>(rank_)]; }

  CheckpointError misuse(const std::string& message) const {
    return {ErrorCode::kInvalidArgument, message, {.rank = world_rank()}};
  }

  /// Brings `mine` to the next operation and waits until all ranks have brought theirs.
  std::shared_ptr<Round> meet(const std::string& what, std::vector<Bytes> mine) {
    Group& group = *group_;
    std::unique_lock lock(group.world.mutex);
    const std::uint64_t number = next_round_++;
    std::shared_ptr<Round>& slot = group.rounds[number];
    if (!slot) slot = std::make_shared<Round>(Round{.what = what});
    const std::shared_ptr<Round> round = slot;

    if (round->what != what && group.failure.empty()) {
      group.failure = "rank " + std::to_string(world_rank()) + " called " + what +
                      " where other ranks called " + round->what +
                      ": all ranks must call the same operations in the same order";
      group.world.changed.notify_all();
      throw misuse(group.failure);
    }
    if (group.failure.empty()) round->brought.emplace(rank_, std::move(mine));
    if (group.complete(*round)) {
      group.rounds.erase(number);
      group.world.changed.notify_all();
      return round;
    }
    std::string obstacle;
    const bool came = group.world.changed.wait_for(lock, timeout_, [&] {
      obstacle = group.complete(*round) ? std::string() : group.obstacle(*round);
      return group.complete(*round) || !obstacle.empty();
    });
    if (!obstacle.empty()) throw PeerFailure(what, obstacle, world_rank());
    if (!came) {
      group.failure = "rank " + std::to_string(world_rank()) + " waited " +
                      std::to_string(timeout_.count()) + " ms in " + what + " for " +
                      ranks_text(group.missing(*round));
      group.world.changed.notify_all();
      throw CheckpointError(ErrorCode::kUnavailable, group.failure, {.rank = world_rank()});
    }
    return round;
  }

  Bytes take_part(Round& round, int sender) const {
    std::vector<Bytes>& parts = round.brought.at(sender);
    if (parts.size() != group_->members.size()) {
      throw misuse(round.what + ": rank " + std::to_string(sender) + " passed " +
                   std::to_string(parts.size()) + " buffers, expected one for each of the " +
                   std::to_string(group_->members.size()) + " ranks");
    }
    return std::move(parts[static_cast<std::size_t>(rank_)]);
  }

  std::shared_ptr<Group> group_;
  int rank_;
  std::chrono::milliseconds timeout_;
  std::uint64_t next_round_ = 0;
};

/// How one rank's body ended.
struct Outcome {
  std::exception_ptr error;
  bool only_reports_a_peer = false;
};

Outcome run_rank(World& world, int rank, const std::function<void()>& body) {
  const std::string name = "rank " + std::to_string(rank);
  try {
    body();
    world.end(rank, name + " has returned");
    return {};
  } catch (const PeerFailure& failure) {
    world.end(rank, failure.obstacle());
    return {std::current_exception(), true};
  } catch (const std::exception& error) {
    world.end(rank, name + " failed: " + error.what());
    return {std::current_exception(), false};
  } catch (...) {
    world.end(rank, name + " failed");
    return {std::current_exception(), false};
  }
}

}  // namespace

void run_ranks(int size, const std::function<void(Communicator&)>& body,
               std::chrono::milliseconds timeout) {
  timeout = std::min<std::chrono::milliseconds>(timeout, kLongestTimeout);
  if (size < 1)
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          "cannot run " + std::to_string(size) + " ranks: at least one is needed");
  World world;
  const auto group = std::make_shared<Group>(Group{world, {}});
  for (int rank = 0; rank < size; ++rank) group->members.push_back(rank);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      Outcome& outcome = outcomes[static_cast<std::size_t>(rank)];
      try {
        threads.emplace_back([&, rank] {
          ThreadCommunicator comm(group, rank, timeout);
          outcome = run_rank(world, rank, [&] { body(comm); });
        });
      } catch (const std::exception&
                   error) {  // no thread to be had: the others must not wait for this rank
        world.end(rank, "rank " + std::to_string(rank) + " could not be started: " + error.what());
        outcome = {std::current_exception(), false};
      }
    }
  }
  for (const bool reports : {false, true}) {
    for (const Outcome& outcome : outcomes) {
      if (outcome.error && outcome.only_reports_a_peer == reports)
        std::rethrow_exception(outcome.error);
    }
  }
}

}  // namespace dckpt
