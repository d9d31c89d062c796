#include "strategies/comm/threads.h"

#include <gmock/gmock.h>

#include <atomic>
#include <optional>

#include "mapping/base/error.h"
#include "strategies/comm/agree.h"
#include "tests/strategies/comm/communicator_conformance.h"
#include "tests/support/no_threads.h"

namespace dckpt::threads_test {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance,
                         ::testing::Values(CommunicatorWorld{"run_ranks", run_ranks}),
                         name_of_world);

std::string error_of(int size, const std::function<void(Communicator&)>& body,
                     std::chrono::milliseconds timeout = std::chrono::minutes(1)) {
  try {
    run_ranks(size, body, timeout);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(Threads, TimeoutNamesTheMissingRanksAndTheCommunicatorStaysUnusable) {
  std::atomic<bool> over = false;
  const std::string message = error_of(
      3,
      [&](Communicator& comm) {
        if (comm.rank() > 0) return over.wait(false);  // alive, but never arrives
        EXPECT_THROW(comm.gather({}, 0), CheckpointError);
        over = true;
        over.notify_all();
        comm.barrier();
      },
      std::chrono::milliseconds(50));
  EXPECT_EQ(
      message,
      "barrier cannot be completed after an earlier failure: gather: waited 50 ms for ranks 1, 2");
}

TEST(Threads, AThrowingRankWakesTheOthersAndItsOwnErrorIsTheResult) {
  std::vector<std::string> others(3);
  const std::string message = error_of(3, [&](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 2) throw CheckpointError(ErrorCode::kCorrupt, "disk on fire");
    try {
      comm.barrier();
    } catch (const CheckpointError& error) {
      others[static_cast<std::size_t>(comm.rank())] = error.what();
      throw;
    }
  });
  EXPECT_EQ(message, "disk on fire");
  EXPECT_EQ(others[0], "barrier: rank 2 failed: disk on fire");
  EXPECT_EQ(others[1], "barrier: rank 2 failed: disk on fire");
}

TEST(Threads, ErrorsReachRanksThatWaitInASplitGroup) {
  EXPECT_EQ(error_of(4,
                     [](Communicator& comm) {
                       const auto pair = comm.split(comm.rank() / 2);
                       if (comm.rank() == 3) throw std::runtime_error("gone");
                       if (comm.rank() == 2) {
                         EXPECT_THROW(pair->barrier(), CheckpointError);
                       }
                       if (comm.rank() < 2) pair->barrier();  // other ranks are not affected
                     }),
            "gone");
}

TEST(Threads, ARankThatReturnsEarlyIsNamedAtOnce) {
  EXPECT_THAT(error_of(2,
                       [](Communicator& comm) {
                         if (comm.rank() == 0) comm.barrier();
                       }),
              HasSubstr("rank 1 has returned"));
}

TEST(Threads, DifferentOperationsAreAnErrorAndNotADeadlock) {
  const std::string message = error_of(
      2, [](Communicator& comm) { comm.rank() == 0 ? comm.barrier() : void(comm.all_gather({})); });
  EXPECT_THAT(message, HasSubstr("all ranks must call the same operations in the same order"));
}

TEST(Threads, TwoRanksThatOnlySendToEachOtherAreNotADeadlock) {
  const std::string message = error_of(2, [](Communicator& comm) {
    if (comm.rank() == 0) return void(comm.broadcast(as_bytes("x"), 0));
    comm.barrier();
  });
  EXPECT_THAT(message, HasSubstr("all ranks must call the same operations in the same order"));
}

TEST(Threads, TheErrorBehindARankThatReturnedIsTheResult) {
  EXPECT_EQ(error_of(3,
                     [](Communicator& comm) {
                       if (comm.rank() == 2) throw std::runtime_error("disk on fire");
                       try {
                         if (comm.rank() == 1) comm.gather({}, 1);
                       } catch (const CheckpointError&) {
                         return;  // the error is swallowed
                       }
                       if (comm.rank() == 0) comm.gather({}, 1);
                     }),
            "disk on fire");
}

TEST(Threads, TheFirstThrowingRankInRankOrderIsTheResult) {
  EXPECT_EQ(error_of(3,
                     [](Communicator& comm) {
                       if (comm.rank() > 0)
                         throw std::runtime_error("error of " + std::to_string(comm.rank()));
                     }),
            "error of 1");
}

TEST(Threads, NoRankBeginsWhereOneCannotBeStarted) {
  const NoThreads no_threads;
  try {
    run_ranks(3, [](Communicator&) { FAIL() << "it would wait for the others"; });
    FAIL() << "there are no threads";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_THAT(error.what(), HasSubstr("cannot run 3 ranks, and none has begun: the thread of "
                                        "rank 0 could not be started"));
  }
}

TEST(Threads, AllReduceOfDifferentLengthsFailsOnEveryRank) {
  std::atomic<int> errors = 0;
  run_ranks(3, [&](Communicator& comm) {
    const std::vector<std::int64_t> values(comm.rank() == 2 ? 5 : 4);
    try {
      comm.all_reduce(values, ReduceOp::kSum);
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 0 passed 4 values, rank 2 5"));
      ++errors;
    }
    comm.barrier();
  });
  EXPECT_EQ(errors, 3);
}

Bytes in_order(const std::vector<Bytes>& ranks) {
  std::string all;
  for (const Bytes& one : ranks) all += std::string(as_text(one)) + ";";
  return to_bytes(all);
}

TEST(Threads, WhatRanksHaveToTellTravelsWithTheirAgreement) {
  run_ranks(3, [](Communicator& comm) {
    const std::string mine = comm.rank() == 1 ? "" : std::to_string(comm.rank());
    EXPECT_EQ(as_text(agree(comm, "reading", std::nullopt, as_bytes(mine), in_order)), "0;;2;");
  });
}

TEST(Threads, AFailureIsToldInsteadAlsoOneOfJoining) {
  for (const bool joining : {false, true}) {
    const std::string message = error_of(2, [&](Communicator& comm) {
      std::optional<CheckpointError> failure;
      if (!joining && comm.rank() == 1) failure.emplace(ErrorCode::kIo, "no such file");
      agree(comm, "reading", failure, {}, [](const std::vector<Bytes>&) -> Bytes {
        throw CheckpointError(ErrorCode::kCorrupt, "not a report");
      });
    });
    EXPECT_THAT(message,
                HasSubstr(joining ? "reading failed on rank 0 of 2; rank 0: not a report"
                                  : "reading failed on rank 1 of 2; rank 1: no such file"));
  }
}

TEST(Threads, NoRanksAreRefused) {
  EXPECT_THROW(run_ranks(0, [](Communicator&) {}), CheckpointError);
}

TEST(Threads, TheLongestTimeoutDoesNotOverflow) {
  run_ranks(
      2, [](Communicator& comm) { comm.barrier(); }, std::chrono::milliseconds::max());
}

}  // namespace
}  // namespace dckpt::threads_test
