#include "strategies/comm/thread_transport.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"

namespace dckpt {
namespace {

/// A message whose sender waits until it is taken.
struct OfferedBytes {
  enum class State { kOpen, kBeingCopied, kTaken };
  ByteView bytes;
  Bytes* whole = nullptr;   ///< the sender's buffer, to be taken instead of copied
  bool only_sends = false;  ///< the sender receives nothing meanwhile
  State state = State::kOpen;
};

struct Ended {
  std::string how;
  std::exception_ptr error;
};

/// The data that one rank shares with the others.
struct Member {
  std::condition_variable changed;  ///< signals what this rank waits for
  std::map<std::pair<int, int>, std::deque<OfferedBytes*>> inbox;  ///< by channel and sender
  std::optional<Ended> ended;
};

}  // namespace

struct ThreadNetwork::State {
  explicit State(int size) : members(static_cast<std::size_t>(size)) {}

  Member& member(int rank) { return members.at(static_cast<std::size_t>(rank)); }

  std::mutex mutex;
  std::vector<Member> members;
  int channels = 1;
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadNetwork::State& network, int rank, int channel)
      : network_(network), rank_(rank), channel_(channel) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    std::unique_lock lock(network_.mutex);
    std::vector<OfferedBytes> offers;
    offers.reserve(outgoing.size());
    try {
      for (const Outgoing& message : outgoing) {
        Member& receiver = network_.member(message.to);
        offers.push_back(
            {.bytes = message.bytes, .whole = message.whole, .only_sends = incoming.empty()});
        receiver.inbox[{channel_, rank_}].push_back(&offers.back());
        receiver.changed.notify_all();
      }
      receive(incoming, deadline, lock);
      wait(deadline, lock, [&] {
        std::vector<int> missing;
        for (std::size_t i = 0; i < offers.size(); ++i) {
          if (offers[i].state == OfferedBytes::State::kTaken) continue;
          missing.push_back(outgoing[i].to);
          if (offers[i].state == OfferedBytes::State::kOpen && incoming.empty())
            require_receiver(outgoing[i].to);
        }
        return missing;
      });
    } catch (...) {
      take_back(outgoing, offers, lock);
      throw;
    }
  }

  bool hands_over() const noexcept override { return true; }

  std::shared_ptr<Transport> part(std::span<const int>, Communicator& group) override {
    Bytes channel;
    if (group.rank() == 0) {
      const std::lock_guard lock(network_.mutex);
      append_le(channel, network_.channels++);
    }
    channel = group.broadcast(channel, 0);
    return std::make_shared<ThreadTransport>(network_, rank_, load_le<int>(channel, 0));
  }

 private:
  /// Takes messages in the order in which they arrive.
  void receive(std::span<const Incoming> incoming, const Deadline& deadline,
               std::unique_lock<std::mutex>& lock) {
    std::vector<Incoming> awaited(incoming.begin(), incoming.end());
    while (!awaited.empty()) {
      std::vector<Incoming> later;
      for (const Incoming& message : awaited) {
        const auto same_sender = [&](const Incoming& other) { return other.from == message.from; };
        if (std::ranges::any_of(later, same_sender) || !take(message, lock))
          later.push_back(message);
      }
      awaited = std::move(later);
      wait(deadline, lock, [&] {
        std::vector<int> missing;
        for (const Incoming& message : awaited) {
          if (!offered_by(message.from).empty()) return std::vector<int>();
          missing.push_back(message.from);
        }
        return missing;
      });
    }
  }

  /// Throws if two ranks send to each other and receive nothing: both would wait until the
  /// deadline.
  void require_receiver(int rank) {
    const std::deque<OfferedBytes*>& theirs = offered_by(rank);
    if (theirs.empty() || !theirs.front()->only_sends) return;
    throw_error(ErrorCode::kInvalidArgument,
                "rank {} and rank {} send to each other and none of them receives: all ranks "
                "must call the same operations in the same order",
                rank_, rank);
  }

  std::deque<OfferedBytes*>& offered_by(int rank) {
    return network_.member(rank_).inbox[{channel_, rank}];
  }

  bool take(const Incoming& message, std::unique_lock<std::mutex>& lock) {
    std::deque<OfferedBytes*>& offers = offered_by(message.from);
    if (offers.empty()) return false;
    OfferedBytes& offer = *offers.front();
    offers.pop_front();
    const bool fits = message.whole != nullptr ? offer.whole != nullptr
                                               : offer.bytes.size() == message.bytes.size();
    if (fits && message.whole != nullptr) {
      *message.whole = std::move(*offer.whole);
    } else if (fits) {
      offer.state = OfferedBytes::State::kBeingCopied;
      lock.unlock();
      std::memcpy(message.bytes.data(), offer.bytes.data(), message.bytes.size());
      lock.lock();
    }
    offer.state = OfferedBytes::State::kTaken;
    network_.member(message.from).changed.notify_all();
    if (!fits) {
      throw_error(ErrorCode::kInternal,
                  "rank {} sent a message of a different length than announced", message.from);
    }
    return true;
  }

  /// Waits until `missing` returns no rank.
  template <typename Missing>
  void wait(const Deadline& deadline, std::unique_lock<std::mutex>& lock, Missing&& missing) {
    while (true) {
      const std::vector<int> ranks = missing();
      if (ranks.empty()) return;
      for (const int rank : ranks) {
        if (const std::optional<Ended>& ended = network_.member(rank).ended)
          throw CheckpointError(ErrorCode::kUnavailable, ended->how, {}, ended->error);
      }
      if (deadline.passed()) {
        throw_error(ErrorCode::kUnavailable, "waited {} ms for {}", deadline.timeout.count(),
                    ranks_text(ranks));
      }
      network_.member(rank_).changed.wait_until(lock, deadline.at);
    }
  }

  /// Waits for copies in progress, so that nothing refers to the caller's buffers afterwards.
  void take_back(std::span<const Outgoing> outgoing, std::vector<OfferedBytes>& offers,
                 std::unique_lock<std::mutex>& lock) {
    for (std::size_t i = 0; i < offers.size(); ++i) {
      auto& inbox = network_.member(outgoing[i].to).inbox;
      if (const auto mine = inbox.find({channel_, rank_}); mine != inbox.end())
        std::erase(mine->second, &offers[i]);
      network_.member(rank_).changed.wait(
          lock, [&] { return offers[i].state != OfferedBytes::State::kBeingCopied; });
    }
  }

  ThreadNetwork::State& network_;
  int rank_;
  int channel_;
};

ThreadNetwork::ThreadNetwork(int size) : state_(std::make_unique<State>(size)) {}
ThreadNetwork::~ThreadNetwork() = default;

std::shared_ptr<Transport> ThreadNetwork::transport(int rank) {
  return std::make_shared<ThreadTransport>(*state_, rank, 0);
}

void ThreadNetwork::end(int rank, std::string how, std::exception_ptr error) {
  const std::lock_guard lock(state_->mutex);
  Member& member = state_->member(rank);
  if (member.ended) return;
  member.ended = Ended{std::move(how), std::move(error)};
  for (Member& other : state_->members) other.changed.notify_all();
}

}  // namespace dckpt
