#include "strategies/comm/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <barrier>
#include <filesystem>

#include "tests/strategies/comm/communicator_conformance.h"
#include "tests/strategies/comm/run_transports.h"

namespace dckpt::shared_memory_test {
namespace {

using ::testing::HasSubstr;

/// Counts the traffic of the network. If `spoils`, damages the first byte of each message received
/// in the first exchange, so that no rank accepts an offer.
class WatchedNetwork final : public Transport {
 public:
  WatchedNetwork(std::shared_ptr<Transport> network, std::atomic<std::uint64_t>& bytes,
                 bool spoils = false)
      : network_(std::move(network)), bytes_(bytes), spoils_(spoils) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    network_->exchange(outgoing, incoming, deadline);
    for (const Outgoing& one : outgoing) bytes_ += one.bytes.size();
    for (const Incoming& one : incoming) {
      if (spoils_ && calls_ < 1) one.bytes.front() ^= std::byte{1};
    }
    ++calls_;
  }
  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    return network_->part(members, group);
  }

 private:
  std::shared_ptr<Transport> network_;
  std::atomic<std::uint64_t>& bytes_;
  bool spoils_;
  int calls_ = 0;
};

void run_sharing_ranks(int size, const std::function<void(Communicator&)>& body,
                       std::chrono::milliseconds timeout) {
  run_transports(size, [&](const std::shared_ptr<Transport>& network, int rank) {
    body(*point_to_point(with_shared_memory(network, rank), rank, size, timeout));
  });
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, CommunicatorConformance,
                         ::testing::Values(CommunicatorWorld{"shared_memory", run_sharing_ranks}),
                         name_of_world);

Bytes pattern(std::size_t size, int seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + static_cast<std::size_t>(seed) * 7) >> 3);
  return bytes;
}

constexpr std::size_t kLong = (std::size_t{3} << 20) + 17;  // many times the size of the ring

void swap_long_messages(Communicator& comm) {
  for (int turn = 0; turn < 3; ++turn) {
    const int other = 1 - comm.rank();
    std::vector<Bytes> parts(2);
    parts[static_cast<std::size_t>(other)] = pattern(kLong, turn + comm.rank());
    const std::vector<Bytes> got = comm.all_to_all(std::move(parts));
    EXPECT_TRUE(got[static_cast<std::size_t>(other)] == pattern(kLong, turn + other));
  }
}

TEST(SharedMemory, AfterTheFirstMessageTheNetworkCarriesNothing) {
  std::atomic<std::uint64_t> bytes = 0;
  run_transports(2, [&](const std::shared_ptr<Transport>& network, int rank) {
    const auto comm =
        point_to_point(with_shared_memory(std::make_shared<WatchedNetwork>(network, bytes), rank),
                       rank, 2, std::chrono::seconds(60));
    comm->barrier();
    comm->barrier();
    const std::uint64_t before = bytes;
    comm->barrier();
    swap_long_messages(*comm);
    comm->barrier();
    EXPECT_EQ(bytes, before);
  });
  EXPECT_LT(bytes, 1000u);
}

TEST(SharedMemory, WhereMemoryCannotBeSharedTheNetworkCarriesAll) {
  std::atomic<std::uint64_t> bytes = 0;
  run_transports(2, [&](const std::shared_ptr<Transport>& network, int rank) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    const auto transport =
        with_shared_memory(std::make_shared<WatchedNetwork>(network, bytes, true), rank);
    const Bytes sent = pattern(kLong, 1);
    Bytes got(kLong);
    for (int turn = 0; turn < 2; ++turn) {
      const Transport::Outgoing outgoing{1, sent};
      const Transport::Incoming incoming{0, got};
      rank == 0 ? transport->exchange({&outgoing, 1}, {}, deadline)
                : transport->exchange({}, {&incoming, 1}, deadline);
    }
    if (rank == 1) {
      EXPECT_TRUE(got == sent);
    }
  });
  EXPECT_GE(bytes, 2 * kLong);
}

/// Returns the error of each of `size` ranks in a barrier that rank `absent` does not reach, after
/// one that it did.
std::vector<std::string> errors_without(int absent, int size, std::chrono::milliseconds timeout) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::shared_ptr<Transport> kept;
  run_transports(size, [&](const std::shared_ptr<Transport>& network, int rank) {
    const auto transport = with_shared_memory(network, rank);
    if (rank == absent) kept = transport;  // it is silent, but has not ended
    point_to_point(transport, rank, size, std::chrono::minutes(10))
        ->all_to_all(std::vector<Bytes>(static_cast<std::size_t>(size)));
    if (rank == absent) return;
    const auto comm = point_to_point(transport, rank, size, timeout);
    try {
      comm->barrier();
    } catch (const CheckpointError& error) {
      errors[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  return errors;
}

TEST(SharedMemory, ARankThatDoesNotComeIsNamedByAllThatWait) {
  const std::vector<std::string> errors = errors_without(3, 5, std::chrono::milliseconds(2000));
  EXPECT_EQ(errors[0], "barrier: waited 2000 ms for rank 3");
  for (const int rank : {1, 2, 4})
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)], HasSubstr("for rank 3")) << rank;
}

TEST(SharedMemory, ARankWhoseCommunicatorEndsIsNoticedAtOnce) {
  std::vector<std::string> errors(3);
  run_transports(3, [&](const std::shared_ptr<Transport>& network, int rank) {
    const auto comm =
        point_to_point(with_shared_memory(network, rank), rank, 3, std::chrono::minutes(10));
    comm->barrier();
    if (rank == 2) return;  // the thread ends, and the process goes on
    try {
      comm->barrier();
    } catch (const CheckpointError& error) {
      errors[static_cast<std::size_t>(rank)] = error.message();
    }
  });
  for (const int rank : {0, 1}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                HasSubstr("rank 2 has given up: its communicator has ended"));
  }
}

TEST(SharedMemory, TheLastMessageOfARankThatHasEndedIsReceived) {
  std::barrier both(2);
  run_transports(2, [&](const std::shared_ptr<Transport>& network, int rank) {
    const Deadline deadline = Deadline::after(std::chrono::minutes(10));
    auto transport = with_shared_memory(network, rank);
    for (const int seed : {1, 2}) {
      if (seed == 2 && rank == 1) both.arrive_and_wait();
      const Bytes sent = pattern(100, seed);
      Bytes got(100);
      const Transport::Outgoing outgoing{1, sent};
      const Transport::Incoming incoming{0, got};
      rank == 0 ? transport->exchange({&outgoing, 1}, {}, deadline)
                : transport->exchange({}, {&incoming, 1}, deadline);
      if (rank == 1) {
        EXPECT_TRUE(got == sent);
      }
    }
    transport.reset();
    if (rank == 0) both.arrive_and_wait();
  });
}

TEST(SharedMemory, ARankThatGivesUpTellsWhyAtOnce) {
  std::vector<std::string> errors(2);
  run_transports(2, [&](const std::shared_ptr<Transport>& network, int rank) {
    const auto transport = with_shared_memory(network, rank);
    Bytes message(100);
    const Transport::Outgoing outgoing{1 - rank, message};
    const Transport::Incoming incoming{1 - rank, message};
    const auto receive = [&](std::chrono::milliseconds timeout) {
      try {
        transport->exchange({}, {&incoming, 1}, Deadline::after(timeout));
      } catch (const CheckpointError& error) {
        errors[static_cast<std::size_t>(rank)] = error.message();
      }
    };
    rank == 0 ? transport->exchange({&outgoing, 1}, {}, Deadline::after(std::chrono::seconds(60)))
              : receive(std::chrono::seconds(60));
    rank == 1 ? transport->exchange({&outgoing, 1}, {}, Deadline::after(std::chrono::seconds(60)))
              : receive(std::chrono::seconds(60));
    receive(rank == 0 ? std::chrono::milliseconds(100) : std::chrono::minutes(10));
  });
  EXPECT_EQ(errors[0], "waited 100 ms for rank 1");
  EXPECT_EQ(errors[1], "rank 0 has given up: waited 100 ms for rank 1");
}

/// Overwrites the counters of all memory files that this process shares.
void scribble() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(entry.path(), ignored).string().find("memfd:dckpt") ==
        std::string::npos)
      continue;
    const std::uint64_t nonsense = ~std::uint64_t{0} / 3;
    const int fd = std::stoi(entry.path().filename());
    for (const off_t counter : {64, 128})
      ASSERT_EQ(::pwrite(fd, &nonsense, sizeof nonsense, counter), 8);
  }
}

TEST(SharedMemory, CountersThatCannotBeAreAnError) {
  std::vector<std::string> errors(2);
  std::barrier both(2);
  run_transports(2, [&](const std::shared_ptr<Transport>& network, int rank) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(10));
    const auto transport = with_shared_memory(network, rank);
    Bytes message(100);
    const auto move = [&] {
      const Transport::Outgoing outgoing{1, message};
      const Transport::Incoming incoming{0, message};
      rank == 0 ? transport->exchange({&outgoing, 1}, {}, deadline)
                : transport->exchange({}, {&incoming, 1}, deadline);
    };
    move();
    both.arrive_and_wait();
    if (rank == 0) scribble();
    both.arrive_and_wait();
    for (int turn = 0; turn < 2;
         ++turn) {  // one after the other, since either would correct its own counter
      if (turn == rank) {
        try {
          move();
        } catch (const CheckpointError& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      }
      both.arrive_and_wait();
    }
  });
  EXPECT_THAT(errors, ::testing::Each(HasSubstr(
                          "the counters in the memory shared with another rank are impossible")));
}

TEST(SharedMemory, NothingStaysOpen) {
  const auto open_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = open_descriptors();
  run_sharing_ranks(
      4, [](Communicator& comm) { comm.split(comm.rank() % 2)->barrier(); },
      std::chrono::seconds(60));
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace dckpt::shared_memory_test
