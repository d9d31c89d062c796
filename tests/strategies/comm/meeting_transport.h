#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/comm/point_to_point.h"

namespace dckpt {

/// Where ranks meet: a message goes from the sender's memory into the receiver's when both have
/// called, and not before.
class Meeting {
 public:
  struct Offer {
    ByteView bytes;
    bool taken = false;
  };
  using Pair = std::tuple<int, int, int>;  ///< channel, from, to

  std::mutex mutex;
  std::condition_variable changed;
  std::map<Pair, std::vector<Offer*>> offers;
  int channels = 1;
};

class MeetingTransport final : public Transport {
 public:
  MeetingTransport(std::shared_ptr<Meeting> meeting, int rank, int channel)
      : meeting_(std::move(meeting)), rank_(rank), channel_(channel) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    EXPECT_TRUE(outgoing.empty() || incoming.empty() ||
                (outgoing.size() == 1 && incoming.size() == 1));
    std::unique_lock lock(meeting_->mutex);
    std::vector<Meeting::Offer> offers;
    for (const Outgoing& one : outgoing) offers.push_back({one.bytes});
    for (std::size_t i = 0; i < outgoing.size(); ++i) {
      EXPECT_FALSE(outgoing[i].bytes.empty());
      meeting_->offers[{channel_, rank_, outgoing[i].to}].push_back(&offers[i]);
    }
    meeting_->changed.notify_all();
    for (const Incoming& one : incoming) {
      auto& theirs = meeting_->offers[{channel_, one.from, rank_}];
      if (!meeting_->changed.wait_until(lock, deadline.at, [&] { return !theirs.empty(); }))
        throw late(one.from, deadline);
      EXPECT_EQ(theirs.front()->bytes.size(), one.bytes.size());
      std::ranges::copy(theirs.front()->bytes, one.bytes.begin());
      theirs.front()->taken = true;
      theirs.erase(theirs.begin());
      meeting_->changed.notify_all();
    }
    for (std::size_t i = 0; i < outgoing.size(); ++i) {
      if (!meeting_->changed.wait_until(lock, deadline.at, [&] { return offers[i].taken; }))
        throw late(outgoing[i].to, deadline);
    }
  }

  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    EXPECT_TRUE(std::ranges::is_sorted(members));
    Bytes channel;
    if (group.rank() == 0) {
      const std::scoped_lock lock(meeting_->mutex);
      append_le(channel, meeting_->channels++);
    }
    channel = group.broadcast(channel, 0);
    return std::make_shared<MeetingTransport>(meeting_, rank_, load_le<int>(channel, 0));
  }

 private:
  /// Takes back what nobody has taken.
  CheckpointError late(int peer, const Deadline& deadline) const {
    for (auto& [pair, list] : meeting_->offers) {
      if (std::get<0>(pair) == channel_ && std::get<1>(pair) == rank_) list.clear();
    }
    return {ErrorCode::kUnavailable, "waited " + std::to_string(deadline.timeout.count()) +
                                         " ms for rank " + std::to_string(peer)};
  }

  std::shared_ptr<Meeting> meeting_;
  int rank_;
  int channel_;
};

/// Runs one body on each rank, with the rank's transport; rethrows the first error in rank order.
inline void run_transports(
    int size, const std::function<void(const std::shared_ptr<Transport>&, int)>& body) {
  const auto meeting = std::make_shared<Meeting>();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(std::make_shared<MeetingTransport>(meeting, rank, 0), rank);
        } catch (...) {
          errors[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace dckpt
