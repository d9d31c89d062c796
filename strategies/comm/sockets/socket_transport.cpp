// Messages over sockets.
//
// Two ranks connect when they first exchange a message: the one with the higher rank connects, and
// begins with a greeting; the other one accepts in whichever exchange it is by then. The first rank
// of a group is connected with all others from the start, and notices if one ends. Each message is
// preceded by its length (64 bits, little-endian), so that a message of another length than the
// expected one is an error and does not become part of the next message.
//
//   an exchange ends early    what it has not received of a message is skipped later; a message
//                             that it has sent in part can never become whole, so this end sends
//                             nothing more, and the other one finds that the connection broke off
//   the other side is gone    what it has sent before is received first; then an error says so
//   a stranger connects       it has no key of the job, and is dropped

#include "strategies/comm/sockets/socket_transport.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"

namespace dckpt::sockets {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kHead = sizeof(std::uint64_t);
// Looking again costs less than sleeping while the other side is at work.
constexpr int kYields = 16;
constexpr std::size_t kFew = 4;  // ranks to look at
constexpr milliseconds kLongestWait{60'000};

/// The connection to another rank.
struct Connection {
  posix::Fd socket{};
  bool is_open = false;                 ///< false: it is being made
  bool sends = true;                    ///< false: a message was sent in part
  Bytes greeting{};                     ///< the part that has yet to be sent
  std::array<std::byte, kHead> head{};  ///< the head of the arriving message
  std::size_t head_bytes = 0;
  std::uint64_t skipped = 0;  ///< bytes of a message that nobody waits for any more
};

/// The connections that others make, until they have told who they are.
class Arrivals {
 public:
  struct Arrived {
    Greeting greeting;
    posix::Fd socket;
  };

  bool empty() const noexcept { return strangers_.empty(); }
  void add_events(std::vector<pollfd>& events) const {
    for (const Stranger& stranger : strangers_)
      events.push_back({stranger.socket.get(), POLLIN, 0});
  }

  /// Takes new connections, and returns those whose greeting has come.
  std::vector<Arrived> welcome(const posix::Fd& listener) {
    std::vector<Arrived> arrived;
    while (strangers_.size() < kMostStrangers) {  // the others wait
      posix::Fd socket = accept_from(listener);
      if (!socket) break;
      strangers_.push_back({std::move(socket)});
    }
    for (Stranger& stranger : strangers_) {
      const Moved moved =
          receive_some(stranger.socket, MutableByteView(stranger.heard).subspan(stranger.bytes));
      stranger.bytes += moved.bytes;
      if (stranger.bytes == kGreetingBytes) {
        if (const std::optional<Greeting> greeting = decode_greeting(stranger.heard))
          arrived.push_back({*greeting, std::move(stranger.socket)});
        stranger.socket = {};
      } else if (moved.ended) {
        stranger.socket = {};
      }
    }
    const auto now = Clock::now();
    std::erase_if(strangers_, [&](const Stranger& stranger) {
      return !stranger.socket || now - stranger.since > kMostSilence;
    });
    if (strangers_.size() == kMostStrangers) strangers_.erase(strangers_.begin());
    return arrived;
  }

 private:
  struct Stranger {
    posix::Fd socket;
    Clock::time_point since = Clock::now();
    std::array<std::byte, kGreetingBytes> heard{};
    std::size_t bytes = 0;
  };
  std::vector<Stranger> strangers_{};
};

/// The messages of one exchange with one rank.
struct Traffic {
  struct Sent {
    ByteView bytes;
    std::array<std::byte, kHead> head{};
    std::size_t head_bytes = 0;  ///< bytes of the head already sent
  };
  std::deque<Sent> out{};
  std::deque<MutableByteView> in{};
  bool receives = false;  ///< the first of `in` has begun

  bool is_done() const noexcept { return out.empty() && in.empty(); }
};

class SocketTransport final : public Transport {
 public:
  SocketTransport(Meeting meeting, int rank, std::vector<int> ranks)
      : meeting_(std::move(meeting)), rank_(rank), ranks_(std::move(ranks)) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    std::map<int, Traffic> traffic;
    for (const Outgoing& one : outgoing) {
      Traffic::Sent sent{one.bytes};
      const std::uint64_t length = one.bytes.size();
      std::memcpy(sent.head.data(), &length, kHead);
      traffic[one.to].out.push_back(sent);
    }
    for (const Incoming& one : incoming) traffic[one.from].in.push_back(one.bytes);
    try {
      std::vector<int> ready;
      for (const auto& [peer, messages] : traffic) ready.push_back(peer);
      int idle = traffic.size() > kFew ? kYields : 0;
      while (!traffic.empty()) {
        bool moves = false;
        for (const int peer : ready) moves |= move(peer, traffic.at(peer));
        std::erase_if(traffic, [](const auto& one) { return one.second.is_done(); });
        std::erase_if(ready, [&](int peer) { return !traffic.contains(peer); });
        if (moves || traffic.empty()) continue;
        if (idle < kYields) {
          ++idle;
          ::sched_yield();
        } else {
          if (deadline.passed()) throw_late(traffic, deadline);
          ready = wait(traffic, deadline);
        }
      }
    } catch (...) {
      break_off(traffic);
      throw;
    }
  }

  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    Doorstep doorstep = meeting_.doorstep.another();
    JobKey key = make_key();
    const Bytes first = group.broadcast(group.rank() == 0 ? ByteView(key) : ByteView(), 0);
    if (first.size() == key.size()) std::ranges::copy(first, key.begin());
    std::vector<std::string> names;
    for (const Bytes& name : group.all_gather(as_bytes(doorstep.name())))
      names.emplace_back(as_text(name));
    auto made =
        std::make_shared<SocketTransport>(Meeting{std::move(doorstep), key, std::move(names)},
                                          rank_, std::vector(members.begin(), members.end()));
    made->connect_with_first(Deadline::after(group.timeout()));
    return made;
  }

 private:
  /// Connects the first rank with all others, so that it notices if one ends.
  void connect_with_first(const Deadline& deadline) {
    Bytes signs(ranks_.size());
    if (rank_ != ranks_.front()) {
      const Outgoing sign{ranks_.front(), ByteView(signs).first(1)};
      return exchange({&sign, 1}, {}, deadline);
    }
    std::vector<Incoming> incoming;
    for (std::size_t i = 1; i < ranks_.size(); ++i)
      incoming.push_back({ranks_[i], MutableByteView(signs).subspan(i, 1)});
    exchange({}, incoming, deadline);
  }

  Connection& connection(int peer) {
    const auto [found, is_new] = connections_.try_emplace(peer);
    Connection& with = found->second;
    if (is_new && rank_ > peer) {
      const auto at = std::ranges::lower_bound(ranks_, peer) - ranks_.begin();
      const Address address =
          meeting_.doorstep.address_of(meeting_.names[static_cast<std::size_t>(at)]);
      const auto greeting = encode(Greeting{meeting_.key, rank_, peer});
      with.greeting.assign(greeting.begin(), greeting.end());
      with.socket = connect_to(address);
      if (!with.socket) {
        const int error = errno;
        connections_.erase(found);
        throw_lost(peer, error);
      }
    }
    return with;
  }

  /// Moves what can be moved now. Returns whether that is anything.
  bool move(int peer, Traffic& traffic) {
    Connection& with = connection(peer);
    if (!with.socket) return false;
    if (!with.is_open && !opens(peer, with)) return false;
    const bool received = receive(peer, with, traffic);
    return send(peer, with, traffic) || received;
  }

  /// Completes a connection that this rank makes.
  bool opens(int peer, Connection& with) {
    pollfd writable{with.socket.get(), POLLOUT, 0};
    if (::poll(&writable, 1, 0) != 1) return false;
    if (const int error = error_of(with.socket)) throw_lost(peer, error);
    const Moved moved = send_some(with.socket, with.greeting);
    if (moved.ended) throw_lost(peer, errno);
    with.greeting.erase(with.greeting.begin(),
                        with.greeting.begin() + static_cast<std::ptrdiff_t>(moved.bytes));
    with.is_open = with.greeting.empty();
    return with.is_open;
  }

  static bool send(int peer, Connection& with, Traffic& traffic) {
    bool moves = false;
    while (!traffic.out.empty()) {
      if (!with.sends) {
        throw_error(ErrorCode::kUnavailable, {.rank = peer},
                    "an earlier message to rank {} was sent in part, so none can follow", peer);
      }
      Traffic::Sent& sent = traffic.out.front();
      const Moved moved =
          send_some(with.socket, ByteView(sent.head).subspan(sent.head_bytes), sent.bytes);
      if (moved.ended) throw_lost(peer, errno);
      if (moved.bytes == 0) return moves;
      moves = true;
      const std::size_t of_head = std::min(moved.bytes, kHead - sent.head_bytes);
      sent.head_bytes += of_head;
      sent.bytes = sent.bytes.subspan(moved.bytes - of_head);
      if (sent.bytes.empty()) traffic.out.pop_front();
    }
    return moves;
  }

  static bool receive(int peer, Connection& with, Traffic& traffic) {
    bool moves = false;
    while (!traffic.in.empty()) {
      MutableByteView& into = traffic.in.front();
      if (!traffic.receives) {
        if (!skip(peer, with)) return moves;
        if (with.head_bytes < kHead) {
          const std::size_t count =
              take(peer, with, MutableByteView(with.head).subspan(with.head_bytes));
          if (count == 0) return moves;
          moves = true;
          with.head_bytes += count;
          continue;
        }
        const auto length = load_le<std::uint64_t>(with.head, 0);
        with.head_bytes = 0;
        if (length != into.size()) {
          with.skipped = length;
          throw_error(ErrorCode::kInternal,
                      "rank {} sent a message of a different length than announced", peer);
        }
        traffic.receives = true;
      }
      const std::size_t count = take(peer, with, into);
      if (count == 0) return moves;
      moves = true;
      into = into.subspan(count);
      if (into.empty()) {
        traffic.in.pop_front();
        traffic.receives = false;
      }
    }
    return moves;
  }

  /// Takes away what is left of a message that nobody waits for. Returns whether that was all.
  static bool skip(int peer, Connection& with) {
    std::array<std::byte, 65536> nowhere;
    while (with.skipped > 0) {
      const auto most = std::min<std::uint64_t>(with.skipped, nowhere.size());
      const std::size_t count =
          take(peer, with, MutableByteView(nowhere).first(static_cast<std::size_t>(most)));
      if (count == 0) return false;
      with.skipped -= count;
    }
    return true;
  }

  static std::size_t take(int peer, Connection& with, MutableByteView into) {
    errno = 0;
    const Moved moved = receive_some(with.socket, into);
    if (moved.ended) throw_lost(peer, errno);
    return moved.bytes;
  }

  /// Returns the ranks with which something can be moved.
  std::vector<int> wait(const std::map<int, Traffic>& traffic, const Deadline& deadline) {
    std::vector<pollfd> events;
    std::vector<int> peers, ready;
    for (const auto& [peer, messages] : traffic) {
      const Connection& with = connection(peer);
      if (!with.socket) continue;  // the other rank connects
      peers.push_back(peer);
      const bool sends = !with.is_open || !messages.out.empty();
      const bool receives = with.is_open && !messages.in.empty();
      events.push_back({with.socket.get(),
                        static_cast<short>((sends ? POLLOUT : 0) | (receives ? POLLIN : 0)), 0});
    }
    events.push_back({meeting_.doorstep.socket().get(), POLLIN, 0});
    arrivals_.add_events(events);
    auto time =
        std::chrono::duration_cast<milliseconds>(deadline.at - Clock::now()) + milliseconds(1);
    if (!arrivals_.empty()) time = std::min(time, kMostSilence);
    time = std::clamp(time, milliseconds(0), kLongestWait);
    ::poll(events.data(), events.size(), static_cast<int>(time.count()));
    for (std::size_t i = 0; i < peers.size(); ++i) {
      if (events[i].revents != 0) ready.push_back(peers[i]);
    }
    for (const int peer : welcome()) {
      if (traffic.contains(peer)) ready.push_back(peer);
    }
    return ready;
  }

  /// Takes the connections that other ranks have made. Returns these ranks.
  std::vector<int> welcome() {
    std::vector<int> connected;
    for (auto& [greeting, socket] : arrivals_.welcome(meeting_.doorstep.socket())) {
      if (greeting.key != meeting_.key || greeting.to != rank_ || greeting.from <= rank_ ||
          !std::ranges::binary_search(ranks_, greeting.from))
        continue;
      Connection& with = connections_[greeting.from];
      if (with.socket) continue;
      with.socket = std::move(socket);
      with.is_open = true;
      connected.push_back(greeting.from);
    }
    return connected;
  }

  /// Leaves the connections in a state from which later messages are still understood.
  void break_off(const std::map<int, Traffic>& traffic) noexcept {
    for (const auto& [peer, messages] : traffic) {
      const auto found = connections_.find(peer);
      if (found == connections_.end()) continue;
      Connection& with = found->second;
      if (messages.receives) with.skipped = messages.in.front().size();
      if (!messages.out.empty() && messages.out.front().head_bytes > 0) {
        with.sends = false;
        if (with.socket) ::shutdown(with.socket.get(), SHUT_WR);
      }
    }
  }

  [[noreturn]] static void throw_late(const std::map<int, Traffic>& traffic,
                                      const Deadline& deadline) {
    // Messages that do not arrive come before those that are not taken.
    std::vector<int> silent, deaf;
    for (const auto& [peer, messages] : traffic)
      (messages.in.empty() ? deaf : silent).push_back(peer);
    throw_error(ErrorCode::kUnavailable, "waited {} ms for {}", deadline.timeout.count(),
                ranks_text(silent.empty() ? deaf : silent));
  }

  [[noreturn]] static void throw_lost(int peer, int error) {
    const bool is_closed = error == 0 || error == EPIPE || error == ECONNRESET;
    throw_error(ErrorCode::kUnavailable, {.rank = peer}, "lost the connection to rank {}: {}", peer,
                is_closed ? "it has ended or given up" : std::strerror(error));
  }

  Meeting meeting_;  ///< with the names of `ranks_`
  int rank_;
  std::vector<int> ranks_;  ///< ascending
  std::map<int, Connection> connections_{};
  Arrivals arrivals_{};
};

}  // namespace

std::shared_ptr<Transport> socket_transport(Meeting meeting, int rank) {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < meeting.names.size(); ++i) ranks.push_back(static_cast<int>(i));
  return std::make_shared<SocketTransport>(std::move(meeting), rank, std::move(ranks));
}

}  // namespace dckpt::sockets
