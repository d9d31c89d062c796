#include "strategies/comm/point_to_point.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/format.h"
#include "mapping/base/ranks_text.h"
#include "mapping/base/text.h"
#include "strategies/comm/device_exchange.h"
#include "strategies/comm/message_header.h"
#include "strategies/comm/phase_label.h"
#include "strategies/comm/reduce.h"

namespace dckpt {
namespace {

// Enough for a message between ranks that both wait for it.
constexpr std::chrono::milliseconds kShort{5};

// Elements of tensors travel by all_to_all, in buffers that take as long to hash as to copy.
constexpr std::size_t kMostHashedElements = std::size_t{1} << 20;

std::uint64_t content_of(Operation operation, ByteView bytes) noexcept {
  if (operation == Operation::kAllToAll && bytes.size() > kMostHashedElements) return 0;
  return fingerprint_of(bytes).low;
}

std::size_t index(int rank) noexcept {
  return static_cast<std::size_t>(rank);
}

class PointToPoint : public Communicator {
 public:
  /// `members`: the job's ranks of this group, in group rank order.
  PointToPoint(std::shared_ptr<Transport> transport, std::vector<int> members, int rank,
               std::chrono::milliseconds timeout)
      : transport_(std::move(transport)),
        members_(std::move(members)),
        rank_(rank),
        timeout_(timeout) {}

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

  std::vector<Bytes> all_gather(ByteView mine) override {
    return all_gather_in(Operation::kAllGather, mine);
  }

  Bytes scatter(std::span<const Bytes> parts, int root) override {
    check_root(*this, root);
    if (rank_ == root) check_count(Operation::kScatter, parts);
    return run(Operation::kScatter, [&] {
      if (rank_ != root) return receive(root);
      std::vector<Sending> sendings;
      for (int to = 0; to < size(); ++to) {
        if (to != root) sendings.push_back({to, parts[index(to)]});
      }
      exchange(sendings, {});
      return parts[index(root)];
    });
  }

  Bytes broadcast(ByteView bytes, int root) override {
    check_root(*this, root);
    return run(Operation::kBroadcast, [&] {
      return broadcast_from(rank_ == root ? Bytes(bytes.begin(), bytes.end()) : Bytes(), root);
    });
  }

  /// In step k to the rank k after this one and from the rank k before: every rank sends and
  /// receives at once, and what has been sent makes room for the next.
  std::vector<Bytes> all_to_all(std::vector<Bytes> parts) override {
    check_count(Operation::kAllToAll, parts);
    return run(Operation::kAllToAll, [&] {
      std::vector<Bytes> all(parts.size());
      all[index(rank_)] = std::move(parts[index(rank_)]);
      if (transport_->hands_over()) {
        std::vector<Sending> sendings;
        std::vector<Receiving> receivings;
        for (int other = 0; other < size(); ++other) {
          if (other == rank_) continue;
          sendings.push_back({other, parts[index(other)], &parts[index(other)]});
          receivings.push_back({other});
        }
        exchange(sendings, receivings);
        for (Receiving& receiving : receivings)
          all[index(receiving.from)] = std::move(receiving.bytes);
        return all;
      }
      Bytes spare;
      for (int step = 1; step < size(); ++step) {
        const int to = (rank_ + step) % size();
        const Sending sending{to, parts[index(to)]};
        Receiving receiving{(rank_ - step + size()) % size(), std::move(spare)};
        exchange({&sending, 1}, {&receiving, 1});
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
        throw misuse(str_format("all_reduce: rank {} passed {} values, rank {} {}", members_[0],
                                result.size(), members_[from], others.size()));
      }
      reduce_into(result, others, op);
    }
    return result;
  }

  std::unique_ptr<Communicator> split(int color) override {
    Bytes mine;
    append_le(mine, color);
    const std::vector<Bytes> all = all_gather_in(Operation::kSplit, mine);
    std::vector<int> members;
    int new_rank = 0;
    for (std::size_t from = 0; from < all.size(); ++from) {
      if (all[from] != mine) continue;
      if (from == index(rank_)) new_rank = static_cast<int>(members.size());
      members.push_back(members_[from]);
    }
    auto group = std::make_unique<PointToPoint>(transport_, std::move(members), new_rank, timeout_);
    if (group->size() == 1) return group;  // sends nothing
    std::shared_ptr<Transport> transport = transport_->part(group->members_, *group);
    return over(std::move(transport), group->members_, new_rank, timeout_);
  }

  static std::unique_ptr<Communicator> over(std::shared_ptr<Transport> transport,
                                            std::vector<int> members, int rank,
                                            std::chrono::milliseconds timeout);

 protected:
  struct Sending {
    int to;
    ByteView bytes;
    Bytes* whole = nullptr;  ///< where they are all, and are not needed afterwards
  };
  struct Receiving {
    int from;
    Bytes bytes{};  ///< before: memory to use again
  };
  struct Announced {
    int to;
    std::uint64_t size;
    std::uint64_t content;  ///< see MessageHeader
    ByteView inlined{};
  };

  CheckpointError misuse(const std::string& message) const {
    return {ErrorCode::kInvalidArgument, message, {.rank = members_[index(rank_)]}};
  }

  template <typename Buffers>
  void check_count(Operation operation, const Buffers& parts) const {
    if (parts.size() == members_.size()) return;
    throw misuse(str_format("{}: got {} buffers, expected one for each of the {} ranks",
                            name_of(operation), parts.size(), size()));
  }

  /// Starts the clock of one operation; after an error in it, it is unknown which messages are
  /// still under way.
  template <typename Body>
  std::invoke_result_t<Body> run(Operation operation, Body&& body) {
    if (failure_) {
      throw CheckpointError(
          failure_->code(),
          PhaseLabel::before(str_format("{} cannot be completed after an earlier failure: {}",
                                        name_of(operation), failure_->message())),
          failure_->context(), failure_->cause());
    }
    operation_ = operation;
    ++number_;
    deadline_ = Deadline::after(timeout_);
    announced_.clear();
    talking_to_.clear();
    try {
      return body();
    } catch (...) {
      failure_ = current_error();
      failure_ = give_up(*failure_);
      throw CheckpointError(*failure_);
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
        const auto length =
            rest.size() < sizeof(std::uint64_t) ? rest.size() : load_le<std::uint64_t>(rest, 0);
        if (!range_fits(sizeof(std::uint64_t), length, rest.size())) break;
        rest = rest.subspan(sizeof(std::uint64_t));
        all.emplace_back(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(length));
        rest = rest.subspan(static_cast<std::size_t>(length));
      }
      if (all.size() != members_.size()) {
        throw misuse(str_format(
            "{}: rank {} sent the wrong number of buffers, expected one for each of the {} ranks",
            name_of(operation_), members_[0], size()));
      }
      return all;
    });
  }

  std::vector<Bytes> gather_to(ByteView mine, int root) {
    std::vector<Bytes> all;
    if (rank_ != root) {
      const Sending sending{root, mine};
      exchange({&sending, 1}, {});
      return all;
    }
    std::vector<Receiving> receivings;
    for (int from = 0; from < size(); ++from) {
      if (from != root) receivings.push_back({from});
    }
    exchange({}, receivings);
    all.resize(members_.size());
    all[index(root)] = Bytes(mine.begin(), mine.end());
    for (Receiving& receiving : receivings) all[index(receiving.from)] = std::move(receiving.bytes);
    return all;
  }

  /// A binomial tree: with ranks counted from the root, each receives from the rank without its
  /// lowest set bit and sends to the ranks with one more bit set below that.
  Bytes broadcast_from(Bytes bytes, int root) {
    const int place = (rank_ - root + size()) % size();
    const auto rank_at = [&](int other) { return (other + root) % size(); };
    int bit = 1;
    while (bit < size() && (place & bit) == 0) bit <<= 1;
    if (place != 0) bytes = receive(rank_at(place - bit));
    std::vector<Sending> sendings;
    for (bit >>= 1; bit > 0; bit >>= 1) {
      if (place + bit < size()) sendings.push_back({rank_at(place + bit), bytes});
    }
    exchange(sendings, {});
    return bytes;
  }

  Bytes receive(int from) {
    Receiving receiving{from};
    exchange({}, {&receiving, 1});
    return std::move(receiving.bytes);
  }

  /// Sends the headers of buffers to ranks, and returns those of others.
  std::vector<MessageHeader> announce(std::span<const Announced> to, std::span<const int> from) {
    std::vector<MessageHeader> mine(to.size());
    std::vector<MessageHeader> theirs(from.size());
    std::vector<Transport::Outgoing> outgoing;
    std::vector<Transport::Incoming> incoming;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const Way way{members_[index(rank_)], members_[index(to[i].to)]};
      mine[i] = message_header(way, operation_, number_, to[i].size, to[i].content, to[i].inlined);
      outgoing.push_back({way.to, std::as_bytes(std::span(&mine[i], 1))});
    }
    for (std::size_t i = 0; i < from.size(); ++i)
      incoming.push_back(
          {members_[index(from[i])], std::as_writable_bytes(std::span(&theirs[i], 1))});
    move(outgoing, incoming);
    for (std::size_t i = 0; i < from.size(); ++i) check(from[i], theirs[i]);
    return theirs;
  }

  /// First the headers, then what they announce and do not hold.
  void exchange(std::span<const Sending> sendings, std::span<Receiving> receivings) {
    // All ranks decide alike: only all_to_all() gives its buffers away.
    const bool hand_over = operation_ == Operation::kAllToAll && transport_->hands_over();
    const auto is_inlined = [&](std::uint64_t size) {
      return !hand_over && size <= MessageHeader::kInlined;
    };
    std::vector<Announced> to;
    std::vector<int> from;
    for (const Sending& sending : sendings) {
      if (is_inlined(sending.bytes.size())) {
        to.push_back({sending.to, sending.bytes.size(), 0, sending.bytes});
      } else {
        to.push_back({sending.to, sending.bytes.size(), content_of(operation_, sending.bytes)});
        announced_[sending.to] = sending.bytes.size();
      }
    }
    for (const Receiving& receiving : receivings) from.push_back(receiving.from);
    talking_to_.clear();
    for (const Announced& one : to) talking_to_.push_back(one.to);
    talking_to_.insert(talking_to_.end(), from.begin(), from.end());
    const std::vector<MessageHeader> theirs = announce(to, from);

    std::vector<Transport::Outgoing> outgoing;
    std::vector<Transport::Incoming> incoming;
    for (std::size_t i = 0; i < receivings.size(); ++i) {
      if (is_inlined(theirs[i].size)) {
        const auto begin = theirs[i].inlined.begin();
        receivings[i].bytes.assign(begin, begin + static_cast<std::ptrdiff_t>(theirs[i].size));
        continue;
      }
      if (hand_over)
        receivings[i].bytes.clear();
      else
        make_room(receivings[i], theirs[i]);
      if (theirs[i].size > 0)
        incoming.push_back({members_[index(receivings[i].from)], receivings[i].bytes,
                            hand_over ? &receivings[i].bytes : nullptr});
    }
    for (const Sending& sending : sendings) {
      if (!is_inlined(sending.bytes.size()) && !sending.bytes.empty())
        outgoing.push_back(
            {members_[index(sending.to)], sending.bytes, hand_over ? sending.whole : nullptr});
    }
    move(outgoing, incoming);
    announced_.clear();
    talking_to_.clear();
    for (std::size_t i = 0; i < receivings.size(); ++i) {
      const ByteView bytes = receivings[i].bytes;
      if (bytes.size() == theirs[i].size &&
          (theirs[i].content == 0 || theirs[i].content == content_of(operation_, bytes)))
        continue;
      if (const auto last = farewell_in(bytes)) throw has_given_up(receivings[i].from, *last);
      throw garbled(receivings[i].from);
    }
  }

  CheckpointError garbled(int from) const {
    return {
        ErrorCode::kCorrupt,
        str_format("{}: a message from rank {} did not arrive as it was sent: check the network "
                   "or the Transport between the ranks, and that all ranks run the same build",
                   name_of(operation_), members_[index(from)])};
  }

  void move(std::span<const Transport::Outgoing> outgoing,
            std::span<const Transport::Incoming> incoming) {
    if (outgoing.empty() && incoming.empty()) return;
    with_operation([&] { transport_->exchange(outgoing, incoming, deadline_); });
  }

  template <typename Work>
  void with_operation(Work&& work) const {
    try {
      work();
    } catch (const CheckpointError& error) {
      throw CheckpointError(error.code(),
                            str_format("{}: {}", name_of(operation_), error.message()),
                            error.context(), error.cause());
    }
  }

  void check(int from, const MessageHeader& header) {
    if (const auto last = farewell_in(std::as_bytes(std::span(&header, 1))))
      throw has_given_up(from, *last);
    if (!is_sound({members_[index(from)], members_[index(rank_)]}, header)) throw garbled(from);
    if (header.operation == operation_ && header.number == number_) return;
    throw misuse(
        str_format("rank {} called {} (operation {}) where rank {} called {} (operation {}): all "
                   "ranks must call the same operations in the same order",
                   members_[index(from)], name_of(header.operation), header.number,
                   members_[index(rank_)], name_of(operation_), number_));
  }

  void make_room(Receiving& receiving, const MessageHeader& header) const {
    try {
      if (receiving.bytes.capacity() < header.size) receiving.bytes = Bytes();
      receiving.bytes.resize(static_cast<std::size_t>(header.size));
    } catch (const std::exception&) {
      throw CheckpointError(
          ErrorCode::kIo,
          str_format("{}: no memory for the {} bytes that rank {} sends", name_of(operation_),
                     grouped(header.size), members_[index(receiving.from)]),
          {.rank = members_[index(rank_)]});
    }
  }

  // After a failure the other ranks are told why, so that they do not take this one for the rank
  // that is gone. After a time-out it is unknown who is: a rank that did not answer may have waited
  // itself. Therefore all that live ask the first of them, which hears so who does not. All of that
  // is as good as the transport still is: whatever fails in it does not matter.

  CheckpointError give_up(const CheckpointError& failure) {
    const std::optional<CheckpointError> told =
        failure.code() == ErrorCode::kInvalidArgument || failure.code() == ErrorCode::kInternal
            ? find_farewell()
            : std::nullopt;
    const CheckpointError& error = told ? *told : failure;
    std::string message = error.message();
    // Threads of one process learn from their network why another one has ended.
    const bool is_told = transport_->hands_over() && error.cause() != nullptr;
    const bool late = error.code() == ErrorCode::kUnavailable && deadline_.passed();
    try {
      if (size() > 2 && !is_told) {
        if (!asked_by_.empty() || (late && !heard_)) {
          message += about_silent_ranks(message);
        } else {
          tell_others(error);
        }
      }
    } catch (const std::exception&) {  // no memory for it
    }
    return {error.code(), PhaseLabel::before(message), error.context(), error.cause()};
  }

  CheckpointError has_given_up(int from, const Farewell& farewell) {
    std::string why = farewell.text;
    if (farewell.kind == Farewell::Kind::kAsks) {
      asked_by_.insert(from);
      why = "it has waited too long";
    } else {
      if (farewell.kind == Farewell::Kind::kSilent) why = answer_text(why);
      heard_ = why;
    }
    return {ErrorCode::kUnavailable, str_format("{}: rank {} has given up: {}", name_of(operation_),
                                                members_[index(from)], why)};
  }

  static std::string answer_text(const std::string& silent) {
    return silent.empty() ? "all ranks answer, so none is gone"
                          : str_format("no answer from {}", silent);
  }

  std::string about_silent_ranks(const std::string& message) {
    const std::optional<Farewell> answer = ask_who_is_silent();
    if (!answer || answer->kind == Farewell::Kind::kAsks) return "";
    const std::string& text = answer->text;
    if (answer->kind == Farewell::Kind::kFailed) return "; " + text;
    return !text.empty() && message.ends_with(" for " + text) ? "" : "; " + answer_text(text);
  }

  /// Time for one step among ranks that have begun to wait at about the same time.
  std::chrono::milliseconds patience() const {
    return std::clamp<std::chrono::milliseconds>(timeout_ / 8, std::chrono::milliseconds(1),
                                                 std::chrono::seconds(10));
  }

  /// Null if that cannot be found out.
  std::optional<Farewell> ask_who_is_silent() {
    constexpr int kMostAsked = 3;
    constexpr int kMostOnTheWay = 8;  // messages that were sent before
    std::set<int> silent;
    for (int first = 0; first < std::min(size(), kMostAsked); ++first) {
      if (first == rank_) return hear_who_is_silent(std::move(silent));
      const MessageHeader question = header_of({Farewell::Kind::kAsks, ""});
      MessageHeader answer{};
      const Transport::Outgoing out{members_[index(first)], std::as_bytes(std::span(&question, 1))};
      const Transport::Incoming in{members_[index(first)],
                                   std::as_writable_bytes(std::span(&answer, 1))};
      const Deadline deadline = Deadline::after((7 + 5 * first) * patience());
      for (int message = 0; message < kMostOnTheWay && !deadline.passed(); ++message) {
        exchange_fails({&out, message == 0 ? 1U : 0U}, {&in, 1}, deadline);
        if (auto last = farewell_in(std::as_bytes(std::span(&answer, 1)))) return last;
      }
      if (!deadline.passed()) return std::nullopt;  // the transport does nothing any more
      silent.insert(first);
    }
    return std::nullopt;
  }

  /// A rank that sends anything lives. Answers all of them.
  std::optional<Farewell> hear_who_is_silent(std::set<int> silent) {
    const Deadline until = Deadline::after(2 * patience());
    bool all_known = true;  // the transport may have given up a rank by itself
    for (int other = 0; other < size(); ++other) {
      if (other == rank_ || silent.contains(other) || asked_by_.contains(other)) continue;
      MessageHeader question{};
      const Transport::Incoming in{members_[index(other)],
                                   std::as_writable_bytes(std::span(&question, 1))};
      const Deadline deadline = until.passed() ? Deadline::after(kShort) : until;
      if (exchange_fails({}, {&in, 1}, deadline) != ErrorCode::kUnavailable) continue;
      deadline.passed() ? void(silent.insert(other)) : void(all_known = false);
    }
    if (static_cast<int>(silent.size()) == size() - 1 || (silent.empty() && !all_known))
      return std::nullopt;
    std::vector<int> ranks;
    for (const int rank : silent) ranks.push_back(members_[index(rank)]);
    const Farewell found{Farewell::Kind::kSilent, ranks.empty() ? "" : ranks_text(ranks)};
    const MessageHeader answer = header_of(found);
    for (int other = 0; other < size(); ++other) {
      if (other == rank_ || silent.contains(other)) continue;
      const Transport::Outgoing out{members_[index(other)], std::as_bytes(std::span(&answer, 1))};
      exchange_fails({&out, 1}, {}, Deadline::after(patience()));
    }
    return found;
  }

  void tell_others(const CheckpointError& error) {
    constexpr std::chrono::milliseconds kLongest{1000};
    if (transport_->hands_over()) return;
    const MessageHeader message =
        header_of({Farewell::Kind::kFailed, heard_ ? *heard_ : error.message()});
    const ByteView bytes = std::as_bytes(std::span(&message, 1));
    std::vector<Bytes> instead;  // of buffers that were announced
    instead.reserve(members_.size());
    std::vector<Transport::Outgoing> outgoing;
    for (int to = 0; to < size(); ++to) {
      if (to == rank_ || members_[index(to)] == error.context().rank) continue;
      ByteView one = bytes;
      if (const auto announced = announced_.find(to); announced != announced_.end()) {
        if (announced->second < bytes.size()) continue;  // no room for it
        instead.emplace_back(bytes.begin(), bytes.end());
        instead.back().resize(static_cast<std::size_t>(announced->second));
        one = instead.back();
      }
      outgoing.push_back({members_[index(to)], one});
    }
    const Deadline deadline = Deadline::after(std::min(patience(), kLongest));
    if (!exchange_fails(outgoing, {}, deadline)) return;
    // The transport may have stopped at a rank that is gone, or at one that sends something itself
    // and listens only then. Whether others have got the announcements is unknown.
    for (const auto& [to, size] : announced_) outgoing.push_back({members_[index(to)], bytes});
    while (!outgoing.empty() && !deadline.passed()) {
      std::erase_if(outgoing, [&](const Transport::Outgoing& one) {
        MessageHeader ignored;
        const Transport::Incoming in{one.to, std::as_writable_bytes(std::span(&ignored, 1))};
        const Deadline soon = Deadline::after(kShort);
        const auto failure = exchange_fails({&one, 1}, {&in, 1}, soon);
        return !failure || (failure == ErrorCode::kUnavailable && !soon.passed());
      });
    }
  }

  /// A rank that does not answer as it should may have said why.
  std::optional<CheckpointError> find_farewell() {
    const Deadline deadline = Deadline::after(10 * kShort);
    for (const int from : talking_to_) {
      MessageHeader header{};
      const Transport::Incoming in{members_[index(from)],
                                   std::as_writable_bytes(std::span(&header, 1))};
      std::optional<ErrorCode> failure;
      do {
        failure = exchange_fails({}, {&in, 1}, deadline);
        if (const auto last = farewell_in(std::as_bytes(std::span(&header, 1))))
          return has_given_up(from, *last);
      } while (failure == ErrorCode::kInternal && !deadline.passed());  // one of another length
    }
    return std::nullopt;
  }

  std::optional<ErrorCode> exchange_fails(std::span<const Transport::Outgoing> outgoing,
                                          std::span<const Transport::Incoming> incoming,
                                          const Deadline& deadline) {
    try {
      transport_->exchange(outgoing, incoming, deadline);
      return std::nullopt;
    } catch (...) {
      return current_error().code();
    }
  }

  std::shared_ptr<Transport> transport_;
  std::vector<int> members_;
  int rank_;
  std::chrono::milliseconds timeout_;
  Operation operation_{};
  std::uint32_t number_ = 0;
  Deadline deadline_{};
  std::map<int, std::uint64_t> announced_{};  ///< bytes that ranks expect of this one
  std::vector<int> talking_to_{};             ///< at present
  std::set<int> asked_by_{};                  ///< ranks that have waited too long
  std::optional<std::string> heard_{};        ///< why another rank has given up
  std::optional<CheckpointError> failure_{};  ///< why it is unusable
};

/// Over a transport that takes boxes too.
class OverDevices final : public PointToPoint, public DeviceExchange {
 public:
  OverDevices(std::shared_ptr<DeviceBoxTransport> transport, std::vector<int> members, int rank,
              std::chrono::milliseconds timeout)
      : PointToPoint(transport, std::move(members), rank, timeout), boxes_(std::move(transport)) {}

  using PointToPoint::all_to_all;
  Device device() const noexcept override { return boxes_->device(); }

  /// The steps and headers of the other all_to_all().
  void all_to_all(std::span<const std::vector<MessagePart>> outgoing,
                  std::span<const std::vector<MessagePart>> incoming) override {
    check_count(Operation::kAllToAll, outgoing);
    check_count(Operation::kAllToAll, incoming);
    run(Operation::kAllToAll, [&] {
      for (int step = 1; step < size(); ++step) {
        const int to = (rank_ + step) % size();
        const int from = (rank_ - step + size()) % size();
        move(to, outgoing[index(to)], from, incoming[index(from)]);
      }
    });
  }

 private:
  void move(int to, std::span<const MessagePart> outgoing, int from,
            std::span<const MessagePart> incoming) {
    const Announced sent{to, length_of(outgoing), 0};
    const std::uint64_t due = length_of(incoming);
    const MessageHeader theirs = announce({&sent, 1}, {&from, 1}).front();
    if (theirs.size != due) {
      throw CheckpointError(
          ErrorCode::kCorrupt,
          str_format("rank {} sent {} bytes where {} were due: do all ranks run the same build?",
                     members_[index(from)], theirs.size, due),
          {.rank = members_[index(rank_)]});
    }
    using Message = DeviceBoxTransport::Message;
    const Message out{members_[index(to)], outgoing};
    const Message in{members_[index(from)], incoming};
    const std::size_t sends = sent.size > 0 ? 1 : 0;
    const std::size_t receives = due > 0 ? 1 : 0;
    if (sends + receives > 0)
      with_operation([&] { boxes_->exchange({&out, sends}, {&in, receives}, deadline_); });
  }

  std::shared_ptr<DeviceBoxTransport> boxes_;
};

std::unique_ptr<Communicator> PointToPoint::over(std::shared_ptr<Transport> transport,
                                                 std::vector<int> members, int rank,
                                                 std::chrono::milliseconds timeout) {
  if (auto boxes = std::dynamic_pointer_cast<DeviceBoxTransport>(transport))
    return std::make_unique<OverDevices>(std::move(boxes), std::move(members), rank, timeout);
  return std::make_unique<PointToPoint>(std::move(transport), std::move(members), rank, timeout);
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
    throw CheckpointError(
        ErrorCode::kInvalidArgument,
        str_format("the timeout of a communicator is {} ms, expected a positive time",
                   timeout.count()));
  }
  if (rank < 0 || rank >= size) {
    throw CheckpointError(ErrorCode::kInvalidArgument,
                          str_format("rank {} is out of range (size {})", rank, size));
  }
  std::vector<int> members(index(size));
  std::iota(members.begin(), members.end(), 0);
  return PointToPoint::over(std::move(transport), std::move(members), rank, timeout);
}

}  // namespace dckpt
