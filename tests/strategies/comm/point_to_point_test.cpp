#include "strategies/comm/point_to_point.h"

#include <gmock/gmock.h>

#include <thread>

#include "mapping/base/fingerprint.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/message_header.h"
#include "strategies/comm/phase_label.h"
#include "tests/strategies/comm/communicator_conformance.h"
#include "tests/strategies/comm/run_transports.h"

namespace dckpt::point_to_point_test {
namespace {

using ::testing::HasSubstr;

void run_ranks_on_network(int size, const std::function<void(Communicator&)>& body,
                          std::chrono::milliseconds timeout) {
  run_transports(size, [&](const std::shared_ptr<Transport>& transport, int rank) {
    body(*point_to_point(transport, rank, size, timeout));
  });
}

INSTANTIATE_TEST_SUITE_P(PointToPoint, CommunicatorConformance,
                         ::testing::Values(CommunicatorWorld{"checked", run_ranks_on_network}),
                         name_of_world);

/// Returns the error of rank 0 when rank 1 sends it `messages` while it gathers.
std::string error_after(const std::vector<Bytes>& messages) {
  std::string text = "no error";
  run_transports(2, [&](const std::shared_ptr<Transport>& transport, int rank) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(30));
    if (rank == 1) {
      for (const Bytes& message : messages) {
        const Transport::Outgoing outgoing{0, message};
        transport->exchange({&outgoing, 1}, {}, deadline);
      }
      return;
    }
    try {
      point_to_point(transport, 0, 2, std::chrono::seconds(30))->gather({}, 0);
    } catch (const CheckpointError& error) {
      text = error.what();
    }
  });
  return text;
}

constexpr std::uint32_t kFarewell = 8;

/// Returns a header to rank 0, with the inlined buffer or the hash of the one that follows.
Bytes header(std::uint32_t operation, std::uint32_t number, std::uint64_t size,
             const std::string& inlined = "", const std::string& follows = "",
             std::uint64_t from = 1) {
  Bytes before;
  append_le(before, operation);
  append_le(before, number);
  append_le(before, size);
  append_le(before, follows.empty() ? 0 : fingerprint_of(as_bytes(follows)).low);
  Bytes after = to_bytes(inlined);
  after.resize(224);
  const auto with_check = [&](std::uint64_t check) {
    Bytes whole = before;
    append_le(whole, check);
    whole.insert(whole.end(), after.begin(), after.end());
    return whole;
  };
  const std::uint64_t way = operation == kFarewell ? UINT64_MAX : from << 32;
  return with_check(fingerprint_of(with_check(way)).low);
}

TEST(PointToPoint, WhatDoesNotArriveAsItWasSentIsAnError) {
  EXPECT_EQ(error_after({header(1, 1, 3, "abc")}), "no error");
  Bytes changed = header(1, 1, 3, "abc");
  for (const std::size_t at : {9U, 33U}) {
    Bytes one = changed;
    one[at] ^= std::byte{1};
    EXPECT_THAT(error_after({one}),
                HasSubstr("a message from rank 1 did not arrive as it was sent"));
  }
  EXPECT_THAT(error_after({header(1, 1, 3, "abc", "", 2)}), HasSubstr("did not arrive as it was"))
      << "what another rank has sent";
  const std::string content(300, 'c');
  EXPECT_EQ(error_after({header(1, 1, 300, "", content), to_bytes(content)}), "no error");
  EXPECT_THAT(error_after({header(1, 1, 300, "", content), to_bytes("d" + content.substr(1))}),
              HasSubstr("did not arrive as it was sent"));
}

TEST(PointToPoint, HeadersOfOtherOperationsAreTold) {
  EXPECT_THAT(
      error_after({header(4, 1, 3, "abc")}),
      HasSubstr("rank 1 called broadcast (operation 1) where rank 0 called gather (operation 1)"));
  EXPECT_THAT(
      error_after({header(1, 7, 3, "abc")}),
      HasSubstr("rank 1 called gather (operation 7) where rank 0 called gather (operation 1)"));
  EXPECT_THAT(error_after({header(99, 1, 3)}), HasSubstr("rank 1 called an unknown operation"));
}

TEST(PointToPoint, ARankThatGivesUpSaysWhyInPlaceOfAHeaderOrOfABuffer) {
  const std::string why = "lost the connection to rank 7";
  const Bytes last = header(kFarewell, 0, why.size(), why);
  EXPECT_EQ(error_after({last}), "gather: rank 1 has given up: " + why);
  Bytes instead = last;
  instead.resize(300);
  EXPECT_EQ(error_after({header(1, 1, 300, "", "the buffer"), instead}),
            "gather: rank 1 has given up: " + why);
}

TEST(PointToPoint, AFarewellThatIsPassedOnNamesTheRankWhoseErrorItIs) {
  const MessageHeader last = header_of({Farewell::Kind::kFailed, "lost the connection", 3});
  const ByteView bytes = std::as_bytes(std::span(&last, 1));
  EXPECT_EQ(farewell_in(bytes)->origin, 3);
  EXPECT_EQ(error_after({Bytes(bytes.begin(), bytes.end())}),
            "gather: rank 3 has given up: lost the connection");
}

TEST(PointToPoint, ABufferThatNoMemoryCanHoldIsAnError) {
  EXPECT_EQ(
      error_after({header(1, 1, ~std::uint64_t{0})}),
      "gather: no memory for the 18,446,744,073,709,551,615 bytes that rank 1 sends [rank 0]");
}

TEST(PointToPoint, ErrorsOfAPartNameTheRanksOfTheWholeJob) {
  const auto run = [] {
    run_ranks_on_network(
        4,
        [](Communicator& comm) {
          const auto pair = comm.split(comm.rank() % 2);
          if (comm.rank() == 1) pair->gather({}, 0);
        },
        std::chrono::milliseconds(2000));  // the time in which all ranks must have split
  };
  try {
    run();
    FAIL() << "no error";
  } catch (const CheckpointError& error) {
    EXPECT_STREQ(error.what(), "gather: waited 2000 ms for rank 3");
  }
}

TEST(PointToPoint, ErrorsSayWhatTheRankWasDoing) {
  const auto message_of = [](const std::function<void(Communicator&)>& call) {
    try {
      run_ranks_on_network(
          2, [&](Communicator& comm) { comm.rank() == 0 ? call(comm) : void(); },
          std::chrono::milliseconds(50));
    } catch (const CheckpointError& error) {
      return error.message();
    }
    return std::string("no error");
  };
  EXPECT_EQ(message_of([](Communicator& comm) {
              const PhaseLabel label("planning the save");
              comm.gather({}, 0);
            }),
            "planning the save: gather: waited 50 ms for rank 1");
  EXPECT_EQ(message_of([](Communicator& comm) {
              const PhaseLabel label("planning the save");
              agree(comm, "describing the state dict", [] {});
            }),
            "describing the state dict: all_reduce: waited 50 ms for rank 1");
}

TEST(PointToPoint, AGroupCanBeUsedByAnotherThread) {
  run_ranks_on_network(
      3,
      [](Communicator& comm) {
        const auto copy = comm.split(0);
        std::jthread background([&] {
          for (int turn = 0; turn < 50; ++turn)
            EXPECT_EQ(copy->all_gather(to_bytes("b" + std::to_string(turn))).size(), 3u);
        });
        for (int turn = 0; turn < 50; ++turn) {
          EXPECT_EQ(comm.broadcast(comm.rank() == 2 ? ByteView(as_bytes("f")) : ByteView(), 2),
                    to_bytes("f"));
        }
      },
      std::chrono::seconds(60));
}

TEST(PointToPoint, TheLongestTimeoutDoesNotOverflow) {
  run_ranks_on_network(
      2, [](Communicator& comm) { comm.barrier(); }, std::chrono::milliseconds::max());
}

TEST(PointToPoint, WhatMakesNoGroupIsRefused) {
  EXPECT_THROW(point_to_point(nullptr, 0, 1, std::chrono::milliseconds(0)), CheckpointError);
  EXPECT_THROW(point_to_point(nullptr, 1, 1, std::chrono::seconds(1)), CheckpointError);
  EXPECT_THROW(point_to_point(nullptr, 0, 0, std::chrono::seconds(1)), CheckpointError);
}

}  // namespace
}  // namespace dckpt::point_to_point_test
