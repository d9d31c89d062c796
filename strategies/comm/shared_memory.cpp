// Messages through shared memory.
//
// Each direction between two ranks has a channel: a ring of bytes in a memory file that the sender
// creates. Before the first message the sender announces the memory file over the network, and the
// receiver maps it and reports whether that worked. If not, this direction stays on the network.
//
//   written   bytes put into the ring so far; only the sender changes it
//   read      bytes taken out so far; only the receiver changes it
//   state     of each side: for which rank it waits, and why it has given up. Who waits for a rank
//             that waits itself says for whom, so all ranks name the one at fault.
//
// Each side also keeps a private copy of its own counter and checks the other's, which another
// process can change. The file is sealed against shrinking before it is offered, so that reading it
// cannot fail. Waiting never blocks in the kernel: both sides poll at growing intervals until the
// deadline, and now and then check that the other process is alive.

#include "strategies/comm/shared_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/file_descriptor.h"

namespace dckpt {
namespace {

using Clock = std::chrono::steady_clock;

// Small enough to stay in the processor's cache between the two copies.
constexpr std::uint64_t kRing = std::uint64_t{256} << 10;
// Looking again costs less than sleeping while the other side is at work.
constexpr int kYields = 64;
constexpr std::chrono::microseconds kShortestNap{20};
constexpr std::chrono::microseconds kLongestNap{1000};
constexpr std::chrono::milliseconds kLifeSign{100};
constexpr std::chrono::milliseconds kLastLook{50};

using Token = std::array<std::uint64_t, 2>;

struct alignas(64) Counter {
  std::atomic<std::uint64_t> value;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// The state that a side reports.
struct State {
  std::atomic<std::int64_t> waits_for;  ///< a rank + 1; 0: no rank
  std::array<char, 500> farewell;       ///< written once
  std::atomic<std::uint32_t> length;    ///< length of the farewell; 0: the side has not given up
};

struct SharedRing {
  Token token;  ///< identifies the memory that was offered
  Counter written;
  Counter read;
  std::array<State, 2> states;  ///< the sender's and the receiver's
  alignas(4096) std::array<std::byte, kRing> bytes;
};

/// The location of a sender's memory. All zero: the sender has none.
struct Offer {
  std::array<char, 40> host{};  ///< boot id of this machine
  std::int64_t process = 0;
  std::int64_t descriptor = -1;
  Token token{};
};

struct Reply {
  enum class Answer : std::uint64_t { kRefused, kAccepted };
  Answer answer = Answer::kRefused;
  std::int64_t process = 0;
};
using Answer = Reply::Answer;

std::array<char, 40> this_host() {
  std::array<char, 40> host{};
  std::ifstream("/proc/sys/kernel/random/boot_id").read(host.data(), host.size() - 1);
  return host;
}

/// One side of a channel.
class Channel {
 public:
  Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel() {
    if (ring_ != nullptr) ::munmap(ring_, sizeof(SharedRing));
  }

  /// Sets up the sender's side. Returns an empty offer if that failed.
  Offer make() {
    sends_ = true;
    Offer offer;
    offer.host = this_host();
    memory_ = posix::Fd(::memfd_create("dckpt", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory_ || ::ftruncate(memory_.get(), sizeof(SharedRing)) != 0 ||
        ::fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0 || !map())
      return offer;
    std::random_device random;
    for (std::uint64_t& word : offer.token) word = (std::uint64_t{random()} << 32) | random() | 1U;
    ring_->token = offer.token;
    offer.process = ::getpid();
    offer.descriptor = memory_.get();
    return offer;
  }

  /// Sets up the receiver's side.
  Answer take(const Offer& offer) {
    if (offer.descriptor < 0 || offer.host.front() == '\0' || offer.host != this_host())
      return Answer::kRefused;
    const std::string path = str_format("/proc/{}/fd/{}", offer.process, offer.descriptor);
    memory_ = posix::Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
    const int seals = !memory_ ? -1 : ::fcntl(memory_.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 ||
        ::lseek(memory_.get(), 0, SEEK_END) != sizeof(SharedRing) || !map() ||
        ring_->token != offer.token)
      return Answer::kRefused;
    watch(offer.process);
    return Answer::kAccepted;
  }

  /// Watches the other side's process, to notice its end.
  void watch(std::int64_t process) {
    process_ =
        posix::Fd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(process), 0)));
  }

  bool other_has_ended() const {
    pollfd ended{process_.get(), POLLIN, 0};
    return process_ && ::poll(&ended, 1, 0) == 1;
  }

  void say_waiting(std::optional<int> peer) noexcept {
    mine().waits_for.store(peer ? *peer + 1 : 0, std::memory_order_relaxed);
  }

  /// Reports why this side gives up. Only the first farewell counts.
  void say_farewell(const std::string& why) noexcept {
    if (mine().length.load(std::memory_order_relaxed) != 0) return;
    const std::size_t count = std::min(why.size(), mine().farewell.size());
    std::memcpy(mine().farewell.data(), why.data(), count);
    mine().length.store(static_cast<std::uint32_t>(count), std::memory_order_release);
  }

  /// Returns the rank that the other side waits for.
  std::optional<int> waits_for() const noexcept {
    const std::int64_t peer = theirs().waits_for.load(std::memory_order_relaxed);
    return peer > 0 && peer <= INT32_MAX ? std::optional(static_cast<int>(peer - 1)) : std::nullopt;
  }

  /// Returns why the other side has given up; empty as long as it has not.
  std::string farewell() const {
    return {theirs().farewell.data(),
            std::min<std::size_t>(theirs().length.load(std::memory_order_acquire),
                                  theirs().farewell.size())};
  }

  /// Puts in as many bytes as there is room for. Returns their number.
  std::size_t send(ByteView bytes) {
    const std::uint64_t used = position_ - ring_->read.value.load(std::memory_order_acquire);
    check(used);
    const std::size_t count = std::min<std::size_t>(bytes.size(), kRing - used);
    const std::size_t at = position_ % kRing;
    const std::size_t first = std::min<std::size_t>(count, kRing - at);
    std::memcpy(ring_->bytes.data() + at, bytes.data(), first);
    std::memcpy(ring_->bytes.data(), bytes.data() + first, count - first);
    position_ += count;
    ring_->written.value.store(position_, std::memory_order_release);
    return count;
  }

  std::size_t receive(MutableByteView bytes) {
    const std::uint64_t available =
        ring_->written.value.load(std::memory_order_acquire) - position_;
    check(available);
    const std::size_t count = std::min<std::size_t>(bytes.size(), available);
    const std::size_t at = position_ % kRing;
    const std::size_t first = std::min<std::size_t>(count, kRing - at);
    std::memcpy(bytes.data(), ring_->bytes.data() + at, first);
    std::memcpy(bytes.data() + first, ring_->bytes.data(), count - first);
    position_ += count;
    ring_->read.value.store(position_, std::memory_order_release);
    return count;
  }

 private:
  State& mine() const noexcept { return ring_->states[sends_ ? 0 : 1]; }
  State& theirs() const noexcept { return ring_->states[sends_ ? 1 : 0]; }

  bool map() {
    void* const memory =
        ::mmap(nullptr, sizeof(SharedRing), PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
    if (memory != MAP_FAILED) ring_ = static_cast<SharedRing*>(memory);
    return ring_ != nullptr;
  }

  static void check(std::uint64_t used) {
    if (used > kRing)
      throw_error(ErrorCode::kCorrupt,
                  "the counters in the memory shared with another rank are impossible: "
                  "something has written over it");
  }

  posix::Fd memory_;
  posix::Fd process_;
  SharedRing* ring_ = nullptr;
  bool sends_ = false;
  std::uint64_t position_ = 0;
};

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(std::shared_ptr<Transport> network, int rank)
      : network_(std::move(network)), rank_(rank) {}
  SharedMemoryTransport(const SharedMemoryTransport&) = delete;
  SharedMemoryTransport& operator=(const SharedMemoryTransport&) = delete;
  ~SharedMemoryTransport() override {  // a rank may be a thread, whose process goes on
    for_all_channels([](Channel& channel) { channel.say_farewell("its communicator has ended"); });
  }

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    open_channels(outgoing, incoming, deadline);
    std::vector<Outgoing> network_out;
    std::vector<Incoming> network_in;
    std::vector<Moving> moving;
    for (const Outgoing& one : outgoing) {
      Channel* const channel = to_.at(one.to).get();
      channel != nullptr ? moving.push_back({one.to, channel, one.bytes, {}})
                         : network_out.push_back(one);
    }
    for (const Incoming& one : incoming) {
      Channel* const channel = from_.at(one.from).get();
      channel != nullptr ? moving.push_back({one.from, channel, {}, one.bytes})
                         : network_in.push_back(one);
    }
    try {
      if (!network_out.empty() || !network_in.empty())
        network_->exchange(network_out, network_in, deadline);
      move(std::move(moving), deadline);
    } catch (const CheckpointError& error) {
      for_all_channels([&](Channel& channel) { channel.say_farewell(error.message()); });
      throw;
    }
  }

  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    return with_shared_memory(network_->part(members, group), rank_);
  }

 private:
  /// Channels by rank. Messages to or from a rank with a null channel use the network.
  using Channels = std::map<int, std::unique_ptr<Channel>>;

  struct Moving {
    int peer;
    Channel* channel;
    ByteView to_send;
    MutableByteView to_receive;
  };

  /// Opens channels for the messages of a call between ranks that had none before.
  void open_channels(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                     const Deadline& deadline) {
    std::map<int, Offer> made;
    std::map<int, Offer> received;
    for (const Outgoing& one : outgoing) {
      if (!to_.contains(one.to)) made[one.to] = (to_[one.to] = std::make_unique<Channel>())->make();
    }
    for (const Incoming& one : incoming) {
      if (!from_.contains(one.from)) received[one.from];
    }
    if (made.empty() && received.empty()) return;
    swap_messages(made, received, deadline);

    std::map<int, Reply> replies;
    std::map<int, Reply> answers;
    for (const auto& [peer, offer] : received) {
      auto channel = std::make_unique<Channel>();
      replies[peer] = {channel->take(offer), ::getpid()};
      if (replies[peer].answer == Answer::kRefused) channel.reset();
      from_[peer] = std::move(channel);
    }
    for (const auto& [peer, offer] : made) answers[peer];
    swap_messages(replies, answers, deadline);
    for (const auto& [peer, reply] : answers) {
      reply.answer == Answer::kAccepted ? to_[peer]->watch(reply.process) : to_[peer].reset();
    }
  }

  template <typename Message>
  void swap_messages(const std::map<int, Message>& mine, std::map<int, Message>& theirs,
                     const Deadline& deadline) {
    std::vector<Outgoing> outgoing;
    std::vector<Incoming> incoming;
    for (const auto& [peer, message] : mine)
      outgoing.push_back({peer, std::as_bytes(std::span(&message, 1))});
    for (auto& [peer, message] : theirs)
      incoming.push_back({peer, std::as_writable_bytes(std::span(&message, 1))});
    network_->exchange(outgoing, incoming, deadline);
  }

  template <typename Visit>
  void for_all_channels(Visit&& visit) {
    for (const Channels* const channels : {&to_, &from_}) {
      for (const auto& [peer, channel] : *channels) {
        if (channel) visit(*channel);
      }
    }
  }

  /// Returns the message that is waited for: one that does not arrive comes before one that is not
  /// taken.
  static const Moving& awaited(const std::vector<Moving>& moving) {
    const auto silent = std::find_if(moving.begin(), moving.end(),
                                     [](const Moving& one) { return !one.to_receive.empty(); });
    return silent != moving.end() ? *silent : moving.front();
  }

  /// Returns the rank that the awaited one waits for, which need not be its neighbor.
  std::optional<int> culprit(const Moving& awaited) const {
    const auto rank = awaited.channel->waits_for();
    return rank == rank_ ? std::nullopt : rank;
  }

  void move(std::vector<Moving> moving, const Deadline& deadline) {
    int idle = 0;
    std::chrono::microseconds nap = kShortestNap;
    auto next_life_sign = Clock::now() + kLifeSign;
    std::optional<CheckpointError> lost;  // earlier messages of that rank are still in the ring
    std::optional<Clock::time_point> last_look;
    while (!moving.empty()) {
      std::size_t moved = 0;
      for (Moving& one : moving) {
        const std::size_t sent = one.to_send.empty() ? 0 : one.channel->send(one.to_send);
        const std::size_t received =
            one.to_receive.empty() ? 0 : one.channel->receive(one.to_receive);
        one.to_send = one.to_send.subspan(sent);
        one.to_receive = one.to_receive.subspan(received);
        moved += sent + received;
      }
      std::erase_if(
          moving, [](const Moving& one) { return one.to_send.empty() && one.to_receive.empty(); });
      if (moved > 0) {
        if (idle >= kYields) for_all_channels([](Channel& channel) { channel.say_waiting({}); });
        idle = 0;
        nap = kShortestNap;
        lost.reset();
        continue;
      }
      if (++idle < kYields) {
        ::sched_yield();
        continue;
      }
      const bool has_looked_again = lost.has_value();
      for (const Moving& one : moving) {
        if (const std::string why = one.channel->farewell(); !why.empty()) {
          lost.emplace(ErrorCode::kUnavailable,
                       str_format("rank {} has given up: {}", one.peer, printable(why)));
          break;
        }
      }
      if (has_looked_again) throw CheckpointError(*lost);
      if (lost) continue;
      const Moving& silent = awaited(moving);
      const std::optional<int> other = culprit(silent);
      // Of two ranks whose time is up together, the second one still hears the farewell of the
      // first one, which knows more about the rank that is gone.
      if (deadline.passed() && !last_look)
        last_look =
            Clock::now() + std::min<std::chrono::milliseconds>(deadline.timeout / 16, kLastLook);
      if (last_look && Clock::now() >= *last_look) {
        throw_error(ErrorCode::kUnavailable, "waited {} ms for rank {}{}", deadline.timeout.count(),
                    silent.peer, other ? ", which waits for rank " + std::to_string(*other) : "");
      }
      for_all_channels([&](Channel& channel) { channel.say_waiting(other.value_or(silent.peer)); });
      if (const auto now = Clock::now(); now >= next_life_sign) {
        next_life_sign = now + kLifeSign;
        const auto found = std::find_if(moving.begin(), moving.end(), [](const Moving& one) {
          return one.channel->other_has_ended();
        });
        if (found != moving.end())
          lost.emplace(
              ErrorCode::kUnavailable,
              str_format("lost the connection to rank {}: its process has ended", found->peer),
              ErrorContext{.rank = found->peer});
      }
      std::this_thread::sleep_for(nap);
      nap = std::min(nap * 2, kLongestNap);
    }
  }

  std::shared_ptr<Transport> network_;
  int rank_;
  Channels to_;
  Channels from_;
};

}  // namespace

std::shared_ptr<Transport> with_shared_memory(std::shared_ptr<Transport> network, int rank) {
  return std::make_shared<SharedMemoryTransport>(std::move(network), rank);
}

}  // namespace dckpt
