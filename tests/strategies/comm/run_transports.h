#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "strategies/comm/point_to_point.h"
#include "strategies/comm/thread_transport.h"

namespace dckpt {

/// Checks that users of a transport keep Transport's contract.
class ExpectingTransport final : public Transport {
 public:
  explicit ExpectingTransport(std::shared_ptr<Transport> base) : base_(std::move(base)) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    EXPECT_TRUE(outgoing.empty() || incoming.empty() ||
                (outgoing.size() == 1 && incoming.size() == 1));
    for (const Outgoing& message : outgoing) EXPECT_FALSE(message.bytes.empty());
    for (const Incoming& message : incoming) EXPECT_FALSE(message.bytes.empty());
    base_->exchange(outgoing, incoming, deadline);
  }

  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    EXPECT_TRUE(std::ranges::is_sorted(members));
    EXPECT_GE(members.size(), 2U);
    return std::make_shared<ExpectingTransport>(base_->part(members, group));
  }

 private:
  std::shared_ptr<Transport> base_;
};

/// Runs one body on each rank, with the rank's transport. Rethrows the first error in rank order.
/// Ranks are not notified of others that have ended.
inline void run_transports(
    int size, const std::function<void(const std::shared_ptr<Transport>&, int)>& body) {
  ThreadNetwork network(size);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(std::make_shared<ExpectingTransport>(network.transport(rank)), rank);
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
