// Ranks as processes, of which one is killed, stopped or ends while the others communicate: all
// others must end with an error that names it, and soon.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/file_descriptor.h"
#include "strategies/comm/sockets/socket.h"
#include "strategies/comm/sockets/socket_communicator.h"

namespace dckpt::socket_faults_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;

enum class Fault { kKilled, kStopped, kEnds };
constexpr milliseconds kTimeout{1500};
constexpr int kRoundBefore = 20;  // rounds of messages before the fault

/// One rank in a process of its own; what it writes at its end can be read here.
struct RankProcess {
  pid_t process = -1;
  posix::Fd output{};

  std::string wait() {
    std::string text;
    std::array<char, 512> some{};
    for (ssize_t count; (count = ::read(output.get(), some.data(), some.size())) > 0;)
      text.append(some.data(), static_cast<std::size_t>(count));
    int status = 0;
    ::waitpid(process, &status, 0);
    return text;
  }
};

/// Returns what a rank says after it has exchanged messages until that fails.
std::string communicate(const std::string& at, int rank, int size, bool shared_memory, int victim,
                        Fault fault) {
  try {
    const auto comm = socket_communicator(
        at, rank, size, {.timeout = kTimeout, .token = "faults", .shared_memory = shared_memory});
    for (int round = 0;; ++round) {
      if (round == kRoundBefore && rank == victim) {
        if (fault == Fault::kEnds) return "ended";
        ::raise(fault == Fault::kKilled ? SIGKILL : SIGSTOP);
        return "went on";
      }
      (void)comm->all_gather(as_bytes("some text of rank " + std::to_string(rank)));
      std::vector<Bytes> parts(static_cast<std::size_t>(size), Bytes(1000));
      (void)comm->all_to_all(std::move(parts));
    }
  } catch (const CheckpointError& error) {
    return std::string(to_string(error.code())) + ": " + error.message();
  }
}

std::vector<RankProcess> start(int size, bool shared_memory, int victim, Fault fault) {
  std::string at;
  {
    const posix::Fd socket = sockets::listen_at(*sockets::parse_address("127.0.0.1:0"));
    at = sockets::local_address(socket).text();
  }
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) ADD_FAILURE() << "no pipe";
    const pid_t process = ::fork();
    if (process == 0) {
      ranks.clear();  // the ends of the other ranks' pipes
      ::close(ends[0]);
      const std::string said = communicate(at, rank, size, shared_memory, victim, fault);
      (void)!::write(ends[1], said.data(), said.size());
      ::_exit(0);
    }
    ::close(ends[1]);
    ranks.push_back({process, posix::Fd(ends[0])});
  }
  return ranks;
}

class SocketFaults : public ::testing::TestWithParam<std::tuple<int, bool, Fault>> {};

TEST_P(SocketFaults, AllOtherRanksNameTheOneAtFault) {
  const auto [size, shared_memory, fault] = GetParam();
  for (const int victim : {0, 1, size - 1}) {
    if (victim == 1 && size == 2) continue;
    std::vector<RankProcess> ranks = start(size, shared_memory, victim, fault);
    std::vector<std::string> said;
    for (int rank = 0; rank < size; ++rank) {
      if (rank != victim) said.push_back(ranks[static_cast<std::size_t>(rank)].wait());
    }
    RankProcess& faulty = ranks[static_cast<std::size_t>(victim)];
    ::kill(faulty.process, SIGKILL);
    faulty.wait();
    EXPECT_THAT(said, Each(AllOf(HasSubstr("unavailable: "),
                                 ContainsRegex("rank " + std::to_string(victim) + "([^0-9]|$)"))))
        << "victim " << victim;
  }
}

INSTANTIATE_TEST_SUITE_P(Few, SocketFaults,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Bool(),
                                            ::testing::Values(Fault::kKilled, Fault::kStopped,
                                                              Fault::kEnds)));
INSTANTIATE_TEST_SUITE_P(Many, SocketFaults,
                         ::testing::Values(std::tuple(64, false, Fault::kKilled)));

}  // namespace
}  // namespace dckpt::socket_faults_test
