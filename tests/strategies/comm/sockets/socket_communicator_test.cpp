#include "strategies/comm/sockets/socket_communicator.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <exception>
#include <filesystem>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "strategies/comm/message_header.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/sockets/handshake.h"
#include "strategies/comm/sockets/rendezvous.h"
#include "strategies/comm/sockets/socket.h"
#include "strategies/comm/sockets/socket_transport.h"
#include "tests/strategies/comm/communicator_conformance.h"
#include "tests/support/temp_dir.h"

namespace dckpt::socket_communicator_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string free_port() {
  const posix::Fd socket = sockets::listen_at(*sockets::parse_address("127.0.0.1:0"));
  return sockets::local_address(socket).text();
}

/// Runs each rank in a thread. Returns their errors, null for ranks that have returned.
std::vector<std::exception_ptr> run(int threads, const std::function<void(int)>& rank) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(threads));
  std::vector<std::jthread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      try {
        rank(i);
      } catch (...) {
        errors[static_cast<std::size_t>(i)] = std::current_exception();
      }
    });
  }
  running.clear();
  return errors;
}

std::string message_of(const std::exception_ptr& error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    return failure.what();
  }
  return {};
}

void run_on(const std::string& rendezvous, int size, const std::function<void(Communicator&)>& body,
            std::chrono::milliseconds timeout, bool shared_memory) {
  const auto errors = run(size, [&](int rank) {
    const auto comm =
        socket_communicator(rendezvous, rank, size,
                            {.timeout = timeout, .token = "test", .shared_memory = shared_memory});
    body(*comm);
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sockets, CommunicatorConformance,
    ::testing::Values(CommunicatorWorld{"tcp",
                                        [](int size, const std::function<void(Communicator&)>& body,
                                           std::chrono::milliseconds timeout) {
                                          run_on(free_port(), size, body, timeout, false);
                                        }},
                      CommunicatorWorld{"unix",
                                        [](int size, const std::function<void(Communicator&)>& body,
                                           std::chrono::milliseconds timeout) {
                                          const TempDir folder;
                                          run_on(folder.path().string() + "/", size, body, timeout,
                                                 false);
                                        }},
                      CommunicatorWorld{"tcp_and_shared_memory",
                                        [](int size, const std::function<void(Communicator&)>& body,
                                           std::chrono::milliseconds timeout) {
                                          run_on(free_port(), size, body, timeout, true);
                                        }}),
    name_of_world);

SocketOptions quick(const std::string& token = "") {
  return {.timeout = std::chrono::seconds(2), .token = token};
}

/// Returns the number of open files of this process.
std::ptrdiff_t open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(Sockets, NothingIsLeftOfJobsThatEndAndOfThoseThatNeverBegan) {
  const TempDir folder;
  const std::string place = folder.path().string() + "/";
  const std::ptrdiff_t before = open_files();
  for (const bool shared_memory : {false, true}) {
    run_on(
        place, 4,
        [](Communicator& comm) {
          (void)comm.split(comm.rank() % 2)->all_to_all(std::vector<Bytes>(2, Bytes(1000)));
        },
        std::chrono::seconds(20), shared_memory);
  }
  for (const int missing : {0, 1}) {
    run(1, [&](int) {
      (void)socket_communicator(place, 1 - missing, 2, {.timeout = std::chrono::milliseconds(50)});
    });
  }
  EXPECT_EQ(open_files(), before);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Sockets, ARankThatKnocksWhereNobodyWaitsDoesNotMeetItself) {
  // The system may choose the port of the other side for this one, which then are the same. It
  // prefers odd ports for those who wait, and even ones for those who connect.
  const std::string odd = free_port();
  const auto port = std::stoul(odd.substr(odd.find(':') + 1)) / 2 * 2;
  const sockets::Address nobody =
      sockets::parse_address(odd)->at_port(static_cast<std::uint16_t>(port));
  for (int attempt = 0; attempt < 40'000; ++attempt) {
    const posix::Fd socket = sockets::connect_to(nobody);
    ASSERT_FALSE(socket && sockets::error_of(socket) == 0) << "attempt " << attempt;
  }
}

TEST(Sockets, RanksThatNeverComeAreNamedOnAllRanks) {
  const std::string at = free_port();
  const auto errors = run(3, [&](int i) {
    const int rank = i == 2 ? 3 : i;  // rank 2 of 4 is missing
    (void)socket_communicator(at, rank, 4, quick());
  });
  for (const auto& error : errors)
    EXPECT_THAT(message_of(error), AllOf(HasSubstr("rank 2 of 4"), HasSubstr("rendezvous")));
}

TEST(Sockets, WithoutRankZeroTheOthersSayWhereTheyLookedForIt) {
  const auto errors = run(1, [&](int) { (void)socket_communicator(free_port(), 1, 2, quick()); });
  EXPECT_THAT(message_of(errors[0]), AllOf(HasSubstr("rank 0"), HasSubstr("127.0.0.1")));
}

TEST(Sockets, ARankThatComesTwiceIsAnErrorOfAll) {
  const std::string at = free_port();
  const auto errors =
      run(4, [&](int i) { (void)socket_communicator(at, i == 3 ? 1 : i, 4, quick()); });
  for (const auto& error : errors) {
    EXPECT_THAT(message_of(error), AnyOf(HasSubstr("two processes have come as rank 1"),
                                         HasSubstr("waited")));  // by one that came too late
  }
  EXPECT_THAT(message_of(errors[0]), HasSubstr("two processes have come as rank 1"));
}

TEST(Sockets, AnotherSizeIsAnErrorOfAll) {
  const std::string at = free_port();
  const auto errors = run(2, [&](int i) { (void)socket_communicator(at, i, 2 + i, quick()); });
  for (const auto& error : errors)
    EXPECT_THAT(message_of(error), HasSubstr("rank 1 belongs to a job of 3 ranks"));
}

TEST(Sockets, ARankWithAnotherTokenIsRefusedAndTheRightOneIsAwaited) {
  const std::string at = free_port();
  std::atomic<bool> refused = false;
  const auto errors = run(3, [&](int i) {
    if (i == 2) {
      while (!refused) std::this_thread::yield();
    }
    try {
      const auto comm =
          socket_communicator(at, i == 0 ? 0 : 1, 2,
                              {.timeout = std::chrono::seconds(20), .token = i == 1 ? "b" : "a"});
      EXPECT_EQ(comm->size(), 2);
      comm->barrier();
    } catch (const CheckpointError&) {
      refused = true;
      throw;
    }
  });
  EXPECT_EQ(message_of(errors[0]), "");
  EXPECT_THAT(message_of(errors[1]), HasSubstr("its token is another one"));
  EXPECT_EQ(message_of(errors[2]), "");
}

/// Says hello as rank 1 of 2 of a build with another protocol, until somebody is there to hear it.
posix::Fd speak_another_version(const std::string& at, const std::string& token) {
  Bytes hello = sockets::framed(sockets::encode(sockets::Hello{token, 1, 2, "127.0.0.1:1"}));
  hello[sockets::kFrameLength + std::string_view("dckpt-hello-0").size()] = std::byte{'9'};
  while (true) {
    posix::Fd socket = sockets::connect_to(*sockets::parse_address(at));
    if (socket && sockets::send_some(socket, hello).bytes == hello.size()) return socket;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

TEST(Sockets, ARankOfAnotherVersionIsAnErrorOfAll) {
  const std::string at = free_port();
  const auto errors = run(3, [&](int i) {
    if (i == 2) {
      const posix::Fd socket = speak_another_version(at, "a");
      std::byte answer{};
      while (!sockets::receive_some(socket, {&answer, 1}).ended) std::this_thread::yield();
    } else {
      (void)socket_communicator(at, i, 3,
                                {.timeout = std::chrono::seconds(i == 0 ? 20 : 2), .token = "a"});
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(message_of(errors[static_cast<std::size_t>(rank)]),
                AnyOf(HasSubstr("version 09 of the protocol, this one 01"),
                      HasSubstr("waited")));  // by one that came too late
  }
  EXPECT_THAT(message_of(errors[0]), HasSubstr("version 09"));
}

TEST(Sockets, AnotherVersionWithAnotherTokenIsAStranger) {
  const std::string at = free_port();
  posix::Fd stranger;
  std::atomic<bool> has_come = false;
  const auto errors = run(3, [&](int i) {
    if (i == 2) {
      stranger = speak_another_version(at, "b");
      has_come = true;
      return;
    }
    while (i == 1 && !has_come) std::this_thread::yield();
    socket_communicator(at, i, 2, {.timeout = std::chrono::seconds(20), .token = "a"})->barrier();
  });
  for (const auto& error : errors) EXPECT_EQ(message_of(error), "");
}

TEST(Sockets, OnlyOneRankZeroWaitsAtAPlace) {
  const TempDir folder;
  for (const auto& [place, expected] :
       {std::pair(free_port(), "Address already in use"),
        std::pair(folder.path().string() + "/", "another job meets in the folder")}) {
    std::atomic<bool> refused = false;
    const auto errors = run(3, [&, at = place](int i) {
      while (i == 2 && !refused) std::this_thread::yield();
      try {
        (void)socket_communicator(at, i == 2 ? 1 : 0, 2, {.timeout = std::chrono::seconds(20)});
      } catch (const CheckpointError&) {
        refused = true;
        throw;
      }
    });
    const bool first_waits = errors[0] == nullptr;
    EXPECT_THAT(message_of(errors[first_waits ? 1 : 0]), HasSubstr(expected));
    EXPECT_EQ(message_of(errors[first_waits ? 0 : 1]), "");
    EXPECT_EQ(message_of(errors[2]), "");
  }
}

TEST(Sockets, OfJobsThatFindADeadSocketOneTakesItsPlace) {
  for (int attempt = 0; attempt < 30; ++attempt) {
    const TempDir folder;
    {
      const posix::Fd directory(::open(folder.path().c_str(), O_PATH | O_DIRECTORY));
      (void)sockets::listen_at(*sockets::in_directory(directory, "rendezvous.sock"));
    }
    constexpr int kJobs = 4;
    std::atomic<int> refused = 0;
    std::barrier begin(kJobs);
    const auto errors = run(kJobs + 1, [&](int i) {
      if (i == kJobs) {
        while (refused < kJobs - 1) std::this_thread::yield();
      } else {
        begin.arrive_and_wait();
      }
      try {
        (void)socket_communicator(folder.path().string() + "/", i == kJobs ? 1 : 0, 2,
                                  {.timeout = std::chrono::seconds(20)});
      } catch (const CheckpointError&) {
        ++refused;
        throw;
      }
    });
    EXPECT_EQ(std::ranges::count(errors, nullptr), 2) << "attempt " << attempt;
  }
}

TEST(Sockets, AHostMayBeANameOrAnAddressOfIpv6) {
  std::string port = free_port();
  port.erase(0, port.find(':'));
  std::vector<std::string> places = {"localhost" + port};
  try {
    places.push_back(
        sockets::local_address(sockets::listen_at(*sockets::parse_address("[::1]:0"))).text());
  } catch (const CheckpointError&) {  // this machine has none
  }
  for (const std::string& at : places) {
    run_on(
        at, 3, [](Communicator& comm) { EXPECT_EQ(comm.all_gather({}).size(), 3U); },
        std::chrono::seconds(20), false);
  }
}

TEST(Sockets, StrangersAtTheDoorOfARankAreNotNoticed) {
  const std::string at = free_port();
  std::vector<posix::Fd> strangers;
  const auto errors = run(2, [&](int rank) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    sockets::Meeting meeting = sockets::meet(sockets::parse_rendezvous(at), rank, 2, "", deadline);
    for (std::size_t i = 0; rank == 1 && i < 2 * sockets::kMostStrangers; ++i) {
      strangers.push_back(sockets::connect_to(*sockets::parse_address(meeting.names[0])));
      const Bytes rubbish(i % 3 * sockets::kGreetingBytes, std::byte{'x'});  // none, a greeting
      if (!rubbish.empty()) (void)sockets::send_some(strangers.back(), rubbish);
    }
    const auto comm = point_to_point(sockets::socket_transport(std::move(meeting), rank), rank, 2,
                                     std::chrono::seconds(20));
    for (int round = 0; round < 10; ++round) comm->barrier();
  });
  for (const auto& error : errors) EXPECT_EQ(message_of(error), "");
}

TEST(Sockets, StrangersAtTheRendezvousAreNotNoticed) {
  const std::string at = free_port();
  std::vector<posix::Fd> strangers;
  const auto errors = run(3, [&](int i) {
    if (i == 2) {
      for (const char* const text : {"", "GET / HTTP/1.1\r\n\r\n", "\xff\xff\xff\xff", "\x04"}) {
        for (int attempt = 0; attempt < 200; ++attempt) {
          posix::Fd socket = sockets::connect_to(*sockets::parse_address(at));
          if (socket &&
              sockets::send_some(socket, as_bytes(text)).bytes == std::string_view(text).size()) {
            strangers.push_back(std::move(socket));
            break;
          }
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
      }
      return;
    }
    if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const auto comm = socket_communicator(at, i, 2, {.timeout = std::chrono::seconds(20)});
    comm->barrier();
  });
  for (const auto& error : errors) EXPECT_EQ(message_of(error), "");
}

TEST(Sockets, ARankThatEndsIsNoticedAtOnce) {
  const std::string at = free_port();
  const auto errors = run(3, [&](int rank) {
    const auto comm = socket_communicator(
        at, rank, 3, {.timeout = std::chrono::seconds(60), .shared_memory = false});
    if (rank == 2) return;
    comm->barrier();
  });
  EXPECT_THAT(message_of(errors[0]), HasSubstr("lost the connection to rank 2"));
  EXPECT_THAT(message_of(errors[1]), HasSubstr("rank 2"));
}

TEST(Sockets, TheReasonOfARankThatTakesNothingMoreIsHeard) {
  const std::string at = free_port();
  std::barrier both(2);
  const auto errors = run(2, [&](int rank) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    auto transport = sockets::socket_transport(
        sockets::meet(sockets::parse_rendezvous(at), rank, 2, "", deadline), rank);
    Bytes in(1), out(1);
    const Transport::Outgoing outgoing{1 - rank, out};
    const Transport::Incoming incoming{1 - rank, in};
    transport->exchange({&outgoing, 1}, {&incoming, 1}, deadline);
    if (rank == 0) {
      transport->exchange({&outgoing, 1}, {}, deadline);  // never received: the connection is reset
      both.arrive_and_wait();
      both.arrive_and_wait();
      point_to_point(std::move(transport), 0, 2, std::chrono::seconds(20))
          ->all_to_all(std::vector<Bytes>(2));
    } else {
      both.arrive_and_wait();
      const MessageHeader farewell = header_of({Farewell::Kind::kFailed, "no memory"});
      const Transport::Outgoing last{0, std::as_bytes(std::span(&farewell, 1))};
      transport->exchange({&last, 1}, {}, deadline);
      transport.reset();
      both.arrive_and_wait();
    }
  });
  EXPECT_THAT(message_of(errors[0]), HasSubstr("rank 1 has given up: no memory"));
}

TEST(Sockets, ARankThatEndsBeforeTheFirstMessageOfItsGroupIsNoticedAtOnce) {
  const std::string at = free_port();
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = run(4, [&](int rank) {
    const auto comm = socket_communicator(
        at, rank, 4, {.timeout = std::chrono::seconds(60), .shared_memory = false});
    const auto group = comm->split(rank == 0 ? 0 : 1);
    if (rank > 0 && rank < 3) group->barrier();
  });
  EXPECT_THAT(message_of(errors[1]), HasSubstr("lost the connection to rank 3"));
  EXPECT_THAT(message_of(errors[2]), HasSubstr("rank 3"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Sockets, ARankThatCannotBeReachedIsAnErrorEachTime) {
  const TempDir folder;
  std::vector<std::string> errors;
  run(2, [&](int rank) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    sockets::Meeting meeting = sockets::meet(
        sockets::parse_rendezvous(folder.path().string() + "/"), rank, 2, "", deadline);
    if (rank == 0) return;
    meeting.names[0] = "nobody.sock";
    const auto transport = sockets::socket_transport(std::move(meeting), rank);
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        const Transport::Outgoing outgoing{0, as_bytes("text")};
        transport->exchange({&outgoing, 1}, {}, deadline);
      } catch (const CheckpointError& error) {
        errors.push_back(error.message());
      }
    }
  });
  EXPECT_THAT(errors, ElementsAre(HasSubstr("lost the connection"), HasSubstr("lost the")));
}

TEST(Sockets, AThousandRanksConnectAndGather) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kRanks = 64;
#else
  constexpr int kRanks = 1024;
#endif
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_max < 8 * kRanks) GTEST_SKIP() << "ranks in one process need more open files";
  run_on(
      free_port(), kRanks,
      [](Communicator& comm) {
        const auto all = comm.all_gather(as_bytes(std::to_string(comm.rank())));
        for (int rank = 0; rank < kRanks; ++rank)
          EXPECT_EQ(as_text(all[static_cast<std::size_t>(rank)]), std::to_string(rank));
      },
      std::chrono::seconds(60), false);
}

}  // namespace
}  // namespace dckpt::socket_communicator_test
