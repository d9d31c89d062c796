#include "strategies/comm/c10d/process_group.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "strategies/comm/reduce.h"

namespace dckpt {
namespace {

// Longer ones would overflow the clock.
constexpr std::chrono::hours kLongestTimeout{24 * 365};

// Above the small numbers that trainers give their own messages.
constexpr int kFirstTag = 0x0dc00000;

// Backends count the bytes of a message in 32 bits; longer buffers travel as several messages.
constexpr std::size_t kLongestMessage = std::size_t{8} << 20;

enum class Operation : std::uint32_t { kBarrier, kGather, kAllGather, kScatter, kBroadcast, kAllToAll, kAllReduce, kSplit };

const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {"barrier", "gather", "all_gather", "scatter", "broadcast", "all_to_all", "all_reduce", "split"};
  const auto index = static_cast<std::size_t>(operation);
  return index < std::size(kNames) ? kNames[index] : "an unknown operation";
}

/// Goes ahead of every buffer: how long it is, and in which call it was sent, so that ranks that are out of step are told and not confused.
struct Header {
  Operation operation;
  std::uint32_t number;
  std::uint64_t size;
};

std::string text_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return printable(torch_error != nullptr ? torch_error->what_without_backtrace() : error.what());
}

/// Collectives from point-to-point messages: exact for buffers of different lengths, the same for a part of the ranks as for all,
/// and a rank that does not come is known by name. Gathering is direct, broadcasting goes along a binomial tree.
class GroupCommunicator final : public Communicator {
 public:
  /// `members`: the backend's ranks of this group, in group rank order. `next_tag` is shared by all groups over one backend.
  GroupCommunicator(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> members, int rank, int tag, std::shared_ptr<std::atomic<int>> next_tag,
                    std::chrono::milliseconds timeout)
      : backend_(std::move(backend)), members_(std::move(members)), rank_(rank), tag_(tag), next_tag_(std::move(next_tag)), timeout_(timeout) {}

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(members_.size()); }
  std::chrono::milliseconds timeout() const noexcept override { return timeout_; }

  void barrier() override {
    run(Operation::kBarrier, [&] {
      gather_to({}, 0);
      return broadcast_from({}, 0);
    });
  }

  std::vector<Bytes> gather(ByteView mine, int root) override {
    check_root(*this, root);
    return run(Operation::kGather, [&] { return gather_to(mine, root); });
  }

  std::vector<Bytes> all_gather(ByteView mine) override { return all_gather_in(Operation::kAllGather, mine); }

  Bytes scatter(std::span<const Bytes> parts, int root) override {
    check_root(*this, root);
    if (rank_ == root) check_count(Operation::kScatter, parts);
    return run(Operation::kScatter, [&] {
      if (rank_ != root) return receive(root);
      std::vector<Sending> sendings;
      for (int to = 0; to < size(); ++to) {
        if (to != root) sendings.push_back(send(parts[index(to)], to));
      }
      finish(sendings);
      return parts[index(root)];
    });
  }

  Bytes broadcast(ByteView bytes, int root) override {
    check_root(*this, root);
    return run(Operation::kBroadcast, [&] { return broadcast_from(rank_ == root ? Bytes(bytes.begin(), bytes.end()) : Bytes(), root); });
  }

  /// In step k to the rank k after this one and from the rank k before: every rank sends and receives at once, and what has been sent makes room for the next.
  std::vector<Bytes> all_to_all(std::vector<Bytes> parts) override {
    check_count(Operation::kAllToAll, parts);
    return run(Operation::kAllToAll, [&] {
      std::vector<Bytes> all(parts.size());
      all[index(rank_)] = std::move(parts[index(rank_)]);
      Bytes spare;
      for (int step = 1; step < size(); ++step) {
        const int to = (rank_ + step) % size();
        const int from = (rank_ - step + size()) % size();
        std::vector<Sending> sendings;
        sendings.push_back(send(parts[index(to)], to));
        all[index(from)] = receive(from, std::move(spare));
        finish(sendings);
        spare = std::move(parts[index(to)]);
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
      if (!others.empty()) std::memcpy(others.data(), all[from].data(), all[from].size());
      if (from == 0) {
        result = others;
        continue;
      }
      if (others.size() != result.size()) {
        throw misuse("all_reduce: rank " + std::to_string(members_[0]) + " passed " + std::to_string(result.size()) + " values, rank " + std::to_string(members_[from]) + " " +
                     std::to_string(others.size()));
      }
      reduce_into(result, others, op);
    }
    return result;
  }

  std::unique_ptr<Communicator> split(int colour) override {
    Bytes mine;
    append_le(mine, colour);
    append_le(mine, next_tag_->load());
    const std::vector<Bytes> all = all_gather_in(Operation::kSplit, mine);
    std::vector<int> members;
    int new_rank = 0;
    int tag = 0;  // not used by any group of these ranks; groups of other colours get the same, they have no rank in common
    for (std::size_t from = 0; from < all.size(); ++from) {
      tag = std::max(tag, load_le<int>(all[from], sizeof colour));
      if (load_le<int>(all[from], 0) != colour) continue;
      if (from == index(rank_)) new_rank = static_cast<int>(members.size());
      members.push_back(members_[from]);
    }
    *next_tag_ = tag + 1;
    return std::make_unique<GroupCommunicator>(backend_, std::move(members), new_rank, tag, next_tag_, timeout_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Work = c10::intrusive_ptr<c10d::Work>;

  /// Messages on their way to one rank; the buffer and the header outlive them.
  struct Sending {
    int to;
    std::unique_ptr<Header> header;
    std::vector<Work> works;
  };

  static std::size_t index(int rank) noexcept { return static_cast<std::size_t>(rank); }

  CheckpointError misuse(const std::string& message) const { return {ErrorCode::kInvalidArgument, message, {.rank = members_[index(rank_)]}}; }

  void check_count(Operation operation, std::span<const Bytes> parts) const {
    if (parts.size() == members_.size()) return;
    throw misuse(std::string(name_of(operation)) + ": got " + std::to_string(parts.size()) + " buffers, expected one for each of the " + std::to_string(size()) + " ranks");
  }

  /// Starts the clock of one operation; after an error in it nobody knows which messages are still under way.
  template <typename Body>
  std::invoke_result_t<Body> run(Operation operation, Body&& body) {
    if (!failure_.empty()) {
      throw CheckpointError(ErrorCode::kIo, std::string(name_of(operation)) + " cannot be completed after an earlier failure: " + failure_, {.rank = members_[index(rank_)]});
    }
    operation_ = operation;
    ++number_;
    deadline_ = Clock::now() + timeout_;
    try {
      return body();
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const CheckpointError*>(&error);
      failure_ = known != nullptr ? known->message() : error.what();
      throw;
    }
  }

  std::vector<Bytes> all_gather_in(Operation operation, ByteView mine) {
    return run(operation, [&] {
      Bytes packed;
      for (const Bytes& one : gather_to(mine, 0)) {
        append_le(packed, std::uint64_t{one.size()});
        packed.insert(packed.end(), one.begin(), one.end());
      }
      packed = broadcast_from(std::move(packed), 0);
      std::vector<Bytes> all;
      for (ByteView rest = packed; !rest.empty();) {
        const auto length = static_cast<std::size_t>(load_le<std::uint64_t>(rest, 0));
        rest = rest.subspan(sizeof(std::uint64_t));
        all.emplace_back(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(length));
        rest = rest.subspan(length);
      }
      return all;
    });
  }

  std::vector<Bytes> gather_to(ByteView mine, int root) {
    std::vector<Bytes> all;
    if (rank_ != root) {
      std::vector<Sending> sendings;
      sendings.push_back(send(mine, root));
      finish(sendings);
      return all;
    }
    for (int from = 0; from < size(); ++from) all.push_back(from == rank_ ? Bytes(mine.begin(), mine.end()) : receive(from));
    return all;
  }

  /// Counted from the root, a rank gets the bytes from the one that lacks its lowest set bit, and passes them on to those that have one more below it.
  Bytes broadcast_from(Bytes bytes, int root) {
    const int place = (rank_ - root + size()) % size();
    const auto rank_at = [&](int other) { return (other + root) % size(); };
    int bit = 1;
    while (bit < size() && (place & bit) == 0) bit <<= 1;
    if (place != 0) bytes = receive(rank_at(place - bit));
    std::vector<Sending> sendings;
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (place + bit < size()) sendings.push_back(send(bytes, rank_at(place + bit)));
    }
    finish(sendings);
    return bytes;
  }

  Sending send(ByteView bytes, int to) {
    Sending sending{to, std::make_unique<Header>(Header{operation_, number_, bytes.size()}), {}};
    guarded(to, [&] {
      const auto post = [&](ByteView piece) {
        std::vector<at::Tensor> tensors = {tensor_over(piece)};
        sending.works.push_back(backend_->send(tensors, members_[index(to)], tag_));
      };
      post(std::as_bytes(std::span(sending.header.get(), 1)));
      for (std::size_t at = 0; at < bytes.size(); at += kLongestMessage) post(bytes.subspan(at, std::min(kLongestMessage, bytes.size() - at)));
    });
    return sending;
  }

  void finish(std::vector<Sending>& sendings) {
    for (Sending& sending : sendings) {
      guarded(sending.to, [&] {
        for (const Work& work : sending.works) wait(*work);
      });
    }
  }

  /// `bytes` is memory to use again.
  Bytes receive(int from, Bytes bytes = {}) {
    Header header{};
    guarded(from, [&] { receive_into(std::as_writable_bytes(std::span(&header, 1)), from); });
    if (header.operation != operation_ || header.number != number_) {
      throw misuse("rank " + std::to_string(members_[index(from)]) + " called " + name_of(header.operation) + " (operation " + std::to_string(header.number) + ") where rank " +
                   std::to_string(members_[index(rank_)]) + " called " + name_of(operation_) + " (operation " + std::to_string(number_) +
                   "): all ranks must call the same operations in the same order");
    }
    if (bytes.capacity() < header.size) bytes = Bytes();
    bytes.resize(static_cast<std::size_t>(header.size));
    guarded(from, [&] {
      const MutableByteView view = bytes;
      for (std::size_t at = 0; at < view.size(); at += kLongestMessage) receive_into(view.subspan(at, std::min(kLongestMessage, view.size() - at)), from);
    });
    return bytes;
  }

  void receive_into(MutableByteView piece, int from) {
    std::vector<at::Tensor> tensors = {tensor_over(piece)};
    wait(*backend_->recv(tensors, members_[index(from)], tag_));
  }

  void wait(c10d::Work& work) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
    // Zero would mean for ever.
    if (!work.wait(std::max(left, std::chrono::milliseconds(1)))) throw std::runtime_error("the operation was aborted");
  }

  /// What the backend throws becomes an error that says for whom this rank waited.
  template <typename Body>
  void guarded(int peer, Body&& body) {
    try {
      body();
    } catch (const std::exception& error) {
      const bool late = Clock::now() >= deadline_;
      throw CheckpointError(ErrorCode::kIo,
                            std::string(name_of(operation_)) + ": " + (late ? "waited " + std::to_string(timeout_.count()) + " ms for rank " : "lost the connection to rank ") +
                                std::to_string(members_[index(peer)]) + ": " + text_of(error),
                            {.rank = members_[index(rank_)]});
    }
  }

  // A view; the backend takes no pointers to const, and only reads what it sends.
  static at::Tensor tensor_over(ByteView bytes) { return at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())}, at::kByte); }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<int> members_;
  int rank_;
  int tag_;
  std::shared_ptr<std::atomic<int>> next_tag_;
  std::chrono::milliseconds timeout_;
  Operation operation_{};
  std::uint32_t number_ = 0;
  Clock::time_point deadline_{};
  std::string failure_{};  ///< why it is unusable
};

}  // namespace

std::unique_ptr<Communicator> c10d_communicator(const c10::intrusive_ptr<c10d::Backend>& backend, std::chrono::milliseconds timeout) {
  if (!backend) throw CheckpointError(ErrorCode::kInvalidArgument, "a communicator over c10d needs a process group; the one that was passed is null");
  if (timeout <= timeout.zero()) {
    throw CheckpointError(ErrorCode::kInvalidArgument, "the timeout of a communicator is " + std::to_string(timeout.count()) + " ms, expected a positive time");
  }
  std::vector<int> members(static_cast<std::size_t>(backend->getSize()));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<GroupCommunicator>(backend, std::move(members), backend->getRank(), kFirstTag, std::make_shared<std::atomic<int>>(kFirstTag + 1),
                                             std::min<std::chrono::milliseconds>(timeout, kLongestTimeout));
}

}  // namespace dckpt
