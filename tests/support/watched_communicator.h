#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "strategies/comm/communicator.h"

namespace dckpt::testing {

/// Forwards everything to `comm`, and calls `at` before and after each operation, which may throw
/// or end the process. Moments are counted from 1: odd ones come before an operation, even ones
/// after it.
class WatchedCommunicator final : public Communicator {
  template <typename Operation>
  auto watch(Operation&& operation) {
    at_(++moments_);
    auto result = operation();
    at_(++moments_);
    return result;
  }

 public:
  WatchedCommunicator(Communicator& comm, std::function<void(std::uint64_t moment)> at)
      : comm_(comm), at_(std::move(at)) {}

  std::uint64_t moments() const noexcept { return moments_; }
  /// Returns the bytes of this rank's buffers in gathers so far.
  std::uint64_t gathered() const noexcept { return gathered_; }

  /// Returns the most bytes that an all_to_all has sent, or received.
  std::uint64_t largest_exchange() const noexcept { return largest_exchange_; }

  int rank() const noexcept override { return comm_.rank(); }
  int size() const noexcept override { return comm_.size(); }
  std::chrono::milliseconds timeout() const noexcept override { return comm_.timeout(); }

  void barrier() override {
    watch([&] { return comm_.barrier(), 0; });
  }
  std::vector<Bytes> gather(ByteView mine, int root) override {
    gathered_ += mine.size();
    return watch([&] { return comm_.gather(mine, root); });
  }
  std::vector<Bytes> all_gather(ByteView mine) override {
    gathered_ += mine.size();
    return watch([&] { return comm_.all_gather(mine); });
  }
  Bytes scatter(std::span<const Bytes> parts, int root) override {
    return watch([&] { return comm_.scatter(parts, root); });
  }
  Bytes broadcast(ByteView bytes, int root) override {
    return watch([&] { return comm_.broadcast(bytes, root); });
  }
  std::vector<Bytes> all_to_all(std::vector<Bytes> parts) override {
    note_exchange(parts);
    std::vector<Bytes> received = watch([&] { return comm_.all_to_all(std::move(parts)); });
    note_exchange(received);
    return received;
  }
  std::vector<std::int64_t> all_reduce(std::span<const std::int64_t> values, ReduceOp op) override {
    return watch([&] { return comm_.all_reduce(values, op); });
  }
  std::unique_ptr<Communicator> split(int color) override {
    return watch([&] { return comm_.split(color); });
  }

 private:
  void note_exchange(const std::vector<Bytes>& buffers) {
    std::uint64_t bytes = 0;
    for (const Bytes& buffer : buffers) bytes += buffer.size();
    largest_exchange_ = std::max(largest_exchange_, bytes);
  }

  Communicator& comm_;
  std::function<void(std::uint64_t)> at_;
  std::uint64_t moments_ = 0;
  std::uint64_t gathered_ = 0;
  std::uint64_t largest_exchange_ = 0;
};

}  // namespace dckpt::testing
