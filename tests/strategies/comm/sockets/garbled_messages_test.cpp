// One rank's connection to rank 0 leads through a proxy that changes a single byte on its way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/comm/message_header.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/sockets/handshake.h"
#include "strategies/comm/sockets/rendezvous.h"
#include "strategies/comm/sockets/socket.h"
#include "strategies/comm/sockets/socket_transport.h"

namespace dckpt::garbled_messages_test {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::size_t kLength = sizeof(std::uint64_t);
constexpr std::size_t kLongText = 1000;  // does not fit into a header

sockets::Address any_port() {
  return *sockets::parse_address("127.0.0.1:0");
}

/// Changes the byte at `position` of all that goes towards `target`, or that comes from there.
class GarblingProxy {
 public:
  GarblingProxy(const sockets::Address& target, std::size_t position, bool from_target)
      : target_(target), position_(position), from_target_(from_target) {}
  GarblingProxy(const GarblingProxy&) = delete;
  GarblingProxy& operator=(const GarblingProxy&) = delete;
  ~GarblingProxy() { stops_ = true; }

  std::string name() const { return sockets::local_address(door_).text(); }

 private:
  static bool is_ready(const posix::Fd& socket, short event) {
    pollfd one{socket.get(), event, 0};
    return ::poll(&one, 1, 5) == 1;
  }

  void run() {
    posix::Fd near, far;
    while (!stops_ && !(near = sockets::accept_from(door_))) is_ready(door_, POLLIN);
    if (near) far = sockets::connect_to(target_);
    while (!stops_ && far) {
      if (!pump(near, far, !from_target_) || !pump(far, near, from_target_)) return;
    }
  }

  /// Returns whether the connections are still open.
  bool pump(const posix::Fd& from, const posix::Fd& to, bool garbles) {
    if (!is_ready(from, POLLIN)) return true;
    std::array<std::byte, 4096> some{};
    const sockets::Moved moved = sockets::receive_some(from, some);
    if (garbles) {
      if (position_ >= passed_ && position_ < passed_ + moved.bytes)
        some[position_ - passed_] ^= std::byte{0x40};
      passed_ += moved.bytes;
    }
    for (std::size_t sent = 0; sent < moved.bytes && !stops_;) {
      is_ready(to, POLLOUT);
      const sockets::Moved more =
          sockets::send_some(to, ByteView(some).subspan(sent, moved.bytes - sent));
      if (more.ended) return false;
      sent += more.bytes;
    }
    return !moved.ended;
  }

  sockets::Address target_;
  std::size_t position_;
  bool from_target_;
  std::size_t passed_ = 0;
  std::atomic<bool> stops_ = false;
  posix::Fd door_ = sockets::listen_at(any_port());
  std::jthread thread_{[this] { run(); }};
};

struct Garbled {
  const char* name;
  std::size_t position;
  bool from_rank_0;
  const char* expected;  ///< what the rank says that the byte arrives at
};

constexpr std::size_t kFirstHeader = sockets::kGreetingBytes + kLength;
constexpr std::size_t kFirstText = kFirstHeader + sizeof(MessageHeader) + kLength;

const Garbled kGarbled[] = {
    {"greeting", 20, false, "waited"},
    {"length", sockets::kGreetingBytes, false, "different length"},
    {"huge_length", kFirstHeader - 1, false, "different length"},
    {"operation", kFirstHeader, false, "did not arrive as it was sent"},
    {"size", kFirstHeader + offsetof(MessageHeader, size) + 6, false, "did not arrive as"},
    {"text", kFirstText + 7, false, "did not arrive as it was sent"},
    {"length_from_rank_0", 7, true, "different length"},
    {"header_from_rank_0", kLength + 50, true, "did not arrive as it was sent"},
};

class GarbledMessages : public ::testing::TestWithParam<std::tuple<int, Garbled>> {};

TEST_P(GarbledMessages, AreAnErrorOfAllRanksSoon) {
  const auto& [size, garbled] = GetParam();
  const std::string place = sockets::local_address(sockets::listen_at(any_port())).text();
  // Only a rank whose greeting is not understood is waited for.
  const milliseconds timeout(std::string_view(garbled.expected) == "waited" ? 1500 : 20'000);
  const int victim = size / 2;  // one to which rank 0 sends broadcasts
  std::unique_ptr<GarblingProxy> proxy;
  std::vector<std::string> said(static_cast<std::size_t>(size));
  const auto begin = std::chrono::steady_clock::now();
  const auto be = [&, garbled = garbled, size = size](int rank) {
    try {
      sockets::Meeting meeting = sockets::meet(sockets::parse_rendezvous(place), rank, size, "",
                                               Deadline::after(std::chrono::seconds(20)));
      if (rank == victim) {
        proxy = std::make_unique<GarblingProxy>(*sockets::parse_address(meeting.names[0]),
                                                garbled.position, garbled.from_rank_0);
        meeting.names[0] = proxy->name();
      }
      const auto comm =
          point_to_point(sockets::socket_transport(std::move(meeting), rank), rank, size, timeout);
      for (int round = 0; round < 10; ++round) (void)comm->all_gather(Bytes(kLongText));
      said[static_cast<std::size_t>(rank)] = "done";
    } catch (const CheckpointError& error) {
      said[static_cast<std::size_t>(rank)] = error.message();
    }
  };
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.emplace_back(be, rank);
  }
  EXPECT_THAT(said[static_cast<std::size_t>(garbled.from_rank_0 ? victim : 0)],
              HasSubstr(garbled.expected));
  EXPECT_THAT(said, Not(Contains("done")));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kMany = 8;
#else
constexpr int kMany = 64;
#endif

INSTANTIATE_TEST_SUITE_P(Sockets, GarbledMessages,
                         ::testing::Combine(::testing::Values(2, 4, kMany),
                                            ::testing::ValuesIn(kGarbled)),
                         [](const auto& test) {
                           return std::get<1>(test.param).name + std::string("_among_") +
                                  std::to_string(std::get<0>(test.param));
                         });

}  // namespace
}  // namespace dckpt::garbled_messages_test
