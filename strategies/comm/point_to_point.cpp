#include "strategies/comm/point_to_point.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/comm/device_exchange.h"
#include "strategies/comm/message_exchange.h"
#include "strategies/comm/message_header.h"
#include "strategies/comm/reduce.h"

namespace dckpt {
namespace {

using Sending = MessageExchange::Sending;
using Receiving = MessageExchange::Receiving;

std::size_t index(int rank) noexcept {
  return static_cast<std::size_t>(rank);
}

class PointToPoint : public Communicator {
 public:
  explicit PointToPoint(RankGroup group) : messages_(std::move(group)) {}

  int rank() const noexcept override { return group().rank; }
  int size() const noexcept override { return group().size(); }
  std::chrono::milliseconds timeout() const noexcept override { return group().timeout; }

  void barrier() override {
    messages_.run(Operation::kBarrier, [&] {
      gather_to({}, 0);
      return broadcast_from({}, 0);
    });
  }

  std::vector<Bytes> gather(ByteView mine, int root) override {
    check_root(*this, root);
    return messages_.run(Operation::kGather, [&] { return gather_to(mine, root); });
  }

  std::vector<Bytes> all_gather(ByteView mine) override {
    return all_gather_in(Operation::kAllGather, mine);
  }

  Bytes scatter(std::span<const Bytes> parts, int root) override {
    check_root(*this, root);
    if (rank() == root) check_count(Operation::kScatter, parts);
    return messages_.run(Operation::kScatter, [&] {
      if (rank() != root) return receive(root);
      std::vector<Sending> sendings;
      for (int to = 0; to < size(); ++to) {
        if (to != root) sendings.push_back({to, parts[index(to)]});
      }
      messages_.exchange(sendings, {});
      return parts[index(root)];
    });
  }

  Bytes broadcast(ByteView bytes, int root) override {
    check_root(*this, root);
    return messages_.run(Operation::kBroadcast, [&] {
      return broadcast_from(rank() == root ? Bytes(bytes.begin(), bytes.end()) : Bytes(), root);
    });
  }

  /// Step k sends to the rank k after this one and receives from the rank k before it. Every rank
  /// sends and receives at once, and sent buffers make room for received ones.
  std::vector<Bytes> all_to_all(std::vector<Bytes> parts) override {
    check_count(Operation::kAllToAll, parts);
    return messages_.run(Operation::kAllToAll, [&] {
      std::vector<Bytes> all(parts.size());
      all[index(rank())] = std::move(parts[index(rank())]);
      if (group().transport->hands_over()) {
        std::vector<Sending> sendings;
        std::vector<Receiving> receivings;
        for (int other = 0; other < size(); ++other) {
          if (other == rank()) continue;
          sendings.push_back({other, parts[index(other)], &parts[index(other)]});
          receivings.push_back({other});
        }
        messages_.exchange(sendings, receivings);
        for (Receiving& receiving : receivings)
          all[index(receiving.from)] = std::move(receiving.bytes);
        return all;
      }
      Bytes spare;
      for (int step = 1; step < size(); ++step) {
        const int to = (rank() + step) % size();
        const Sending sending{to, parts[index(to)]};
        Receiving receiving{(rank() - step + size()) % size(), std::move(spare)};
        messages_.exchange({&sending, 1}, {&receiving, 1});
        all[index(receiving.from)] = std::move(receiving.bytes);
        spare = std::move(parts[index(sending.to)]);
      }
      return all;
    });
  }

  std::vector<std::int64_t> all_reduce(std::span<const std::int64_t> values, ReduceOp op) override {
    std::vector<std::int64_t> result;
    std::vector<std::int64_t> others;
    const std::vector<Bytes> all = all_gather_in(Operation::kAllReduce, std::as_bytes(values));
    for (std::size_t from = 0; from < all.size(); ++from) {
      others.resize(all[from].size() / sizeof(std::int64_t));
      if (!others.empty())
        std::memcpy(others.data(), all[from].data(), others.size() * sizeof(std::int64_t));
      if (from == 0) {
        result = others;
        continue;
      }
      if (others.size() != result.size()) {
        throw messages_.misuse(str_format("all_reduce: rank {} passed {} values, rank {} {}",
                                          group().job_rank(0), result.size(), group().members[from],
                                          others.size()));
      }
      reduce_into(result, others, op);
    }
    return result;
  }

  std::unique_ptr<Communicator> split(int color) override {
    Bytes mine;
    append_le(mine, color);
    const std::vector<Bytes> all = all_gather_in(Operation::kSplit, mine);
    RankGroup part = group();
    part.members.clear();
    for (std::size_t from = 0; from < all.size(); ++from) {
      if (all[from] != mine) continue;
      if (from == index(rank())) part.rank = part.size();
      part.members.push_back(group().members[from]);
    }
    auto joined = std::make_unique<PointToPoint>(part);
    if (part.size() == 1) return joined;  // a single rank sends nothing
    part.transport = group().transport->part(part.members, *joined);
    return over(std::move(part));
  }

  static std::unique_ptr<Communicator> over(RankGroup group);

 protected:
  const RankGroup& group() const noexcept { return messages_.group(); }

  template <typename Buffers>
  void check_count(Operation operation, const Buffers& parts) const {
    if (parts.size() == group().members.size()) return;
    throw messages_.misuse(str_format("{}: got {} buffers, expected one for each of the {} ranks",
                                      name_of(operation), parts.size(), size()));
  }

  std::vector<Bytes> all_gather_in(Operation operation, ByteView mine) {
    return messages_.run(operation, [&] {
      Bytes packed;
      for (const Bytes& one : gather_to(mine, 0)) {
        append_le(packed, std::uint64_t{one.size()});
        packed.insert(packed.end(), one.begin(), one.end());
      }
      packed = broadcast_from(std::move(packed), 0);
      std::vector<Bytes> all;
      for (ByteView rest = packed; !rest.empty();) {
        const auto length =
            rest.size() < sizeof(std::uint64_t) ? rest.size() : load_le<std::uint64_t>(rest, 0);
        if (!range_fits(sizeof(std::uint64_t), length, rest.size())) break;
        rest = rest.subspan(sizeof(std::uint64_t));
        all.emplace_back(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(length));
        rest = rest.subspan(static_cast<std::size_t>(length));
      }
      if (all.size() != group().members.size()) {
        throw messages_.misuse(str_format(
            "{}: rank {} sent the wrong number of buffers, expected one for each of the {} ranks",
            name_of(messages_.call().operation), group().job_rank(0), size()));
      }
      return all;
    });
  }

  std::vector<Bytes> gather_to(ByteView mine, int root) {
    std::vector<Bytes> all;
    if (rank() != root) {
      const Sending sending{root, mine};
      messages_.exchange({&sending, 1}, {});
      return all;
    }
    std::vector<Receiving> receivings;
    for (int from = 0; from < size(); ++from) {
      if (from != root) receivings.push_back({from});
    }
    messages_.exchange({}, receivings);
    all.resize(group().members.size());
    all[index(root)] = Bytes(mine.begin(), mine.end());
    for (Receiving& receiving : receivings) all[index(receiving.from)] = std::move(receiving.bytes);
    return all;
  }

  /// Uses a binomial tree: with ranks counted from the root, each receives from the rank without
  /// its lowest set bit and sends to the ranks with one more bit set below that.
  Bytes broadcast_from(Bytes bytes, int root) {
    const int place = (rank() - root + size()) % size();
    const auto rank_at = [&](int other) { return (other + root) % size(); };
    int bit = 1;
    while (bit < size() && (place & bit) == 0) bit <<= 1;
    if (place != 0) bytes = receive(rank_at(place - bit));
    std::vector<Sending> sendings;
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (place + bit < size()) sendings.push_back({rank_at(place + bit), bytes});
    }
    messages_.exchange(sendings, {});
    return bytes;
  }

  Bytes receive(int from) {
    Receiving receiving{from};
    messages_.exchange({}, {&receiving, 1});
    return std::move(receiving.bytes);
  }

  MessageExchange messages_;
};

/// A communicator over a transport that also takes boxes.
class OverDevices final : public PointToPoint, public DeviceExchange {
 public:
  OverDevices(RankGroup group, std::shared_ptr<DeviceBoxTransport> boxes)
      : PointToPoint(std::move(group)), boxes_(std::move(boxes)) {}

  using PointToPoint::all_to_all;
  Device device() const noexcept override { return boxes_->device(); }

  /// Takes the same steps and sends the same headers as the other all_to_all().
  void all_to_all(std::span<const std::vector<MessagePart>> outgoing,
                  std::span<const std::vector<MessagePart>> incoming) override {
    check_count(Operation::kAllToAll, outgoing);
    check_count(Operation::kAllToAll, incoming);
    messages_.run(Operation::kAllToAll, [&] {
      for (int step = 1; step < size(); ++step) {
        const int to = (rank() + step) % size();
        const int from = (rank() - step + size()) % size();
        move(to, outgoing[index(to)], from, incoming[index(from)]);
      }
    });
  }

 private:
  void move(int to, std::span<const MessagePart> outgoing, int from,
            std::span<const MessagePart> incoming) {
    const MessageExchange::Announced sent{to, length_of(outgoing), 0};
    const std::uint64_t due = length_of(incoming);
    const MessageHeader theirs = messages_.announce({&sent, 1}, {&from, 1}).front();
    if (theirs.size != due) {
      throw_error(ErrorCode::kCorrupt, {.rank = group().job_rank(rank())},
                  "rank {} sent {} bytes, but {} were expected: do all ranks run the same build?",
                  group().job_rank(from), theirs.size, due);
    }
    using Message = DeviceBoxTransport::Message;
    const Message out{group().job_rank(to), outgoing};
    const Message in{group().job_rank(from), incoming};
    const std::size_t sends = sent.size > 0 ? 1 : 0;
    const std::size_t receives = due > 0 ? 1 : 0;
    if (sends + receives > 0)
      messages_.with_operation([&] {
        boxes_->exchange({&out, sends}, {&in, receives}, messages_.call().deadline);
      });
  }

  std::shared_ptr<DeviceBoxTransport> boxes_;
};

std::unique_ptr<Communicator> PointToPoint::over(RankGroup group) {
  if (auto boxes = std::dynamic_pointer_cast<DeviceBoxTransport>(group.transport))
    return std::make_unique<OverDevices>(std::move(group), std::move(boxes));
  return std::make_unique<PointToPoint>(std::move(group));
}

}  // namespace

Deadline Deadline::after(std::chrono::milliseconds timeout) noexcept {
  constexpr std::chrono::hours kLongest{24 * 365};
  return {std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongest),
          timeout};
}

std::unique_ptr<Communicator> point_to_point(std::shared_ptr<Transport> transport, int rank,
                                             int size, std::chrono::milliseconds timeout) {
  if (timeout <= timeout.zero()) {
    throw_error(ErrorCode::kInvalidArgument,
                "the timeout of a communicator is {} ms, expected a positive time",
                timeout.count());
  }
  if (rank < 0 || rank >= size) {
    throw_error(ErrorCode::kInvalidArgument, "rank {} is out of range (size {})", rank, size);
  }
  std::vector<int> members(index(size));
  std::iota(members.begin(), members.end(), 0);
  return PointToPoint::over({std::move(transport), std::move(members), rank, timeout});
}

}  // namespace dckpt
