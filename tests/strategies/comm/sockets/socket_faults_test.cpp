// Ranks as processes, of which one is killed, stopped, ends or sleeps while the others communicate:
// all others must end with an error that names it, and soon. A rank that is merely late is no
// fault.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
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

enum class Fault { kKilled, kStopped, kEnds, kSleeps, kLate };

/// Many processes take a while to get their share of the processors.
milliseconds timeout(int size) {
  return milliseconds(size > 4 ? 4000 : 1500);
}

/// Rounds of messages before the fault, and as many after it.
int half_of_rounds(int size) {
  return size > 4 ? 3 : 20;
}

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
        at, rank, size,
        {.timeout = timeout(size), .token = "faults", .shared_memory = shared_memory});
    for (int round = 0; round < 2 * half_of_rounds(size); ++round) {
      if (round == half_of_rounds(size) && rank == victim) {
        switch (fault) {
          case Fault::kKilled: ::raise(SIGKILL); break;
          case Fault::kStopped: ::raise(SIGSTOP); break;
          case Fault::kEnds: return "ended";
          case Fault::kSleeps: std::this_thread::sleep_for(2 * timeout(size)); break;
          case Fault::kLate: std::this_thread::sleep_for(timeout(size) / 2); break;
        }
      }
      (void)comm->all_gather(as_bytes("some text of rank " + std::to_string(rank)));
      std::vector<Bytes> parts(static_cast<std::size_t>(size), Bytes(1000));
      (void)comm->all_to_all(std::move(parts));
    }
    return "done";
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

/// Returns what the ranks say at their end.
std::vector<std::string> words_of(std::vector<RankProcess>& ranks, int victim, Fault fault) {
  std::vector<std::string> said(ranks.size());
  const auto at = static_cast<std::size_t>(victim);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank != at) said[rank] = ranks[rank].wait();
  }
  if (fault == Fault::kStopped) ::kill(ranks[at].process, SIGKILL);
  said[at] = ranks[at].wait();
  return said;
}

class SocketFaults : public ::testing::TestWithParam<std::tuple<int, bool, Fault>> {};

TEST_P(SocketFaults, AllOtherRanksNameTheOneAtFault) {
  const auto [size, shared_memory, fault] = GetParam();
  std::map<int, std::vector<RankProcess>> jobs;
  for (const int victim : {0, 1, size - 1}) {
    if (victim != 1 || size == 4) jobs[victim] = start(size, shared_memory, victim, fault);
  }
  for (auto& [victim, ranks] : jobs) {
    std::vector<std::string> said = words_of(ranks, victim, fault);
    if (fault == Fault::kSleeps) {
      EXPECT_THAT(said[static_cast<std::size_t>(victim)],
                  AllOf(HasSubstr("unavailable: "), HasSubstr("given up")));
    }
    said.erase(said.begin() + victim);
    EXPECT_THAT(said, Each(AllOf(HasSubstr("unavailable: "),
                                 ContainsRegex("rank " + std::to_string(victim) + "([^0-9]|$)"))))
        << "victim " << victim;
  }
}

INSTANTIATE_TEST_SUITE_P(Few, SocketFaults,
                         ::testing::Combine(::testing::Values(2, 4), ::testing::Bool(),
                                            ::testing::Values(Fault::kKilled, Fault::kStopped,
                                                              Fault::kEnds, Fault::kSleeps)));
INSTANTIATE_TEST_SUITE_P(Many, SocketFaults,
                         ::testing::Combine(::testing::Values(64), ::testing::Values(false),
                                            ::testing::Values(Fault::kKilled, Fault::kStopped,
                                                              Fault::kEnds, Fault::kSleeps)));

class LateRanks : public ::testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(LateRanks, AreAwaitedUntilTheDeadline) {
  const auto [size, shared_memory] = GetParam();
  std::vector<RankProcess> ranks = start(size, shared_memory, size - 1, Fault::kLate);
  EXPECT_THAT(words_of(ranks, size - 1, Fault::kLate), Each("done"));
}

INSTANTIATE_TEST_SUITE_P(SocketFaults, LateRanks,
                         ::testing::Combine(::testing::Values(2, 4, 64), ::testing::Bool()));

}  // namespace
}  // namespace dckpt::socket_faults_test
