#include "strategies/comm/heartbeat.h"

#include <gmock/gmock.h>

#include <atomic>
#include <map>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "strategies/comm/threads.h"
#include "tests/support/expect_error.h"

namespace dckpt::heartbeat_test {
namespace {

using dckpt::testing::error_of;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// Works until the ranks have agreed to stop.
void work_on(Heartbeat& heartbeat) {
  for (;;) {
    heartbeat.check();
    std::this_thread::sleep_for(milliseconds(1));
  }
}

/// Returns the errors of `size` ranks.
std::map<int, CheckpointError> errors_of(int size, milliseconds timeout,
                                         const std::function<void(Communicator&)>& body) {
  std::mutex mutex;
  std::map<int, CheckpointError> errors;
  run_ranks(
      size,
      [&](Communicator& comm) {
        const CheckpointError error = error_of([&] { body(comm); });
        const std::lock_guard lock(mutex);
        errors.emplace(comm.rank(), error);
      },
      timeout);
  return errors;
}

TEST(Heartbeat, ProgressIsThatOfAllRanks) {
  run_ranks(2, [&](Communicator& comm) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;
    Heartbeat heartbeat(comm, {.progress = [&](std::uint64_t done, std::uint64_t total) {
                          seen.emplace_back(done, total);
                        }});
    heartbeat.expect(10);
    heartbeat.agree("writing", [&] { heartbeat.add(10); });
    ASSERT_FALSE(seen.empty());
    EXPECT_EQ(seen.back(), std::pair(std::uint64_t{20}, std::uint64_t{20}));
  });
}

TEST(Heartbeat, ACallbackThatThrowsIsAWarningOnly) {
  run_ranks(2, [&](Communicator& comm) {
    Heartbeat heartbeat(comm, {.progress = [](std::uint64_t, std::uint64_t) {
                          throw std::runtime_error("no terminal");
                        }});
    heartbeat.agree("writing", [] {});
    comm.barrier();
  });
}

TEST(Heartbeat, OneRankCancelsAll) {
  std::stop_source source;
  const auto errors = errors_of(3, std::chrono::minutes(1), [&](Communicator& comm) {
    Heartbeat heartbeat(comm,
                        {.cancel = comm.rank() == 1 ? source.get_token() : std::stop_token()});
    source.request_stop();
    heartbeat.agree("writing the data files", [&] { work_on(heartbeat); });
  });
  for (const auto& [rank, error] : errors) {
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_EQ(error.message(), "writing the data files was cancelled by rank 1") << rank;
  }
}

TEST(Heartbeat, ADecisionToStopHoldsForTheNextWork) {
  std::stop_source source;
  source.request_stop();
  run_ranks(2, [&](Communicator& comm) {
    Heartbeat heartbeat(comm, {.cancel = source.get_token()});
    heartbeat.agree("writing", [] {});  // this work ends before the decision is known
    EXPECT_EQ(
        error_of([&] { heartbeat.agree("publishing", [&] { heartbeat.check(); }); }).message(),
        "writing was cancelled by rank 0");
  });
}

TEST(Heartbeat, TheTimeoutNamesWhoIsStillAtWork) {
  const auto errors = errors_of(3, std::chrono::minutes(1), [&](Communicator& comm) {
    Heartbeat heartbeat(comm, {.timeout = milliseconds(10)});
    heartbeat.expect(12 * kGiB);
    heartbeat.agree("writing the data files", [&] {
      heartbeat.add(comm.rank() == 2 ? 3 * kGiB : 12 * kGiB);
      if (comm.rank() == 2) work_on(heartbeat);
    });
  });
  for (const auto& [rank, error] : errors) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_EQ(error.message(),
              "writing the data files did not finish within its time limit, 10 ms: rank 2 is still "
              "writing the data files (3.0 GiB of 12.0 GiB)");
    EXPECT_EQ(error.context().rank, 2) << rank;
  }
}

TEST(Heartbeat, TheCodeOfAFailureIsThatOfAllRanksAndItsCauseStaysWhereItIs) {
  const auto errors = errors_of(3, std::chrono::minutes(1), [&](Communicator& comm) {
    Heartbeat heartbeat(comm);
    heartbeat.agree("writing", [&] {
      if (comm.rank() == 1) throw std::logic_error("of a strategy");
      work_on(heartbeat);
    });
  });
  for (const auto& [rank, error] : errors) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal) << rank;
    EXPECT_EQ(error.cause() != nullptr, rank == 1) << rank;
  }
}

TEST(Heartbeat, AFailureStopsTheOthersAndIsTheErrorOfAll) {
  const auto errors = errors_of(3, std::chrono::minutes(1), [&](Communicator& comm) {
    Heartbeat heartbeat(comm);
    heartbeat.agree("writing", [&] {
      if (comm.rank() == 1) throw CheckpointError(ErrorCode::kIo, "the disk is full");
      work_on(heartbeat);
    });
  });
  for (const auto& [rank, error] : errors)
    EXPECT_EQ(error.message(), "writing failed on rank 1 of 3; rank 1: the disk is full") << rank;
}

TEST(Heartbeat, ARankThatGivesNoSignsIsNamedWithWhatItHadDone) {
  std::atomic<bool> over = false;
  const auto errors = errors_of(2, milliseconds(500), [&](Communicator& comm) {
    const bool dies = comm.rank() == 1;
    Heartbeat heartbeat(comm, {.progress = [&, dies](std::uint64_t, std::uint64_t) {
                          if (dies) over.wait(false);
                        }});
    heartbeat.expect(12 * kGiB);
    try {
      heartbeat.agree("writing the data files", [&] {
        heartbeat.add(3 * kGiB);
        work_on(heartbeat);
      });
    } catch (...) {
      over = true;
      over.notify_all();
      throw;
    }
  });
  EXPECT_THAT(errors.at(0).message(),
              AllOf(HasSubstr("writing the data files: a rank gives no sign of life: all_gather: "
                              "waited 500 ms for rank 1"),
                    HasSubstr("rank 1 was still writing the data files (3.0 GiB of 12.0 GiB)")));
}

TEST(Heartbeat, WorkThatDoesNotStopKeepsOnlyItsOwnRank) {
  std::atomic<bool> disk_answers = false;
  const auto errors = errors_of(2, milliseconds(500), [&](Communicator& comm) {
    Heartbeat heartbeat(comm, {.timeout = milliseconds(10)});
    try {
      heartbeat.agree("writing", [&] {
        if (comm.rank() == 1) disk_answers.wait(false);
      });
    } catch (...) {
      disk_answers = true;  // rank 0 has left, or no rank would get here
      disk_answers.notify_all();
      throw;
    }
  });
  for (const auto& [rank, error] : errors)
    EXPECT_EQ(error.message(),
              "writing did not finish within its time limit, 10 ms: rank 1 is still writing")
        << rank;
}

TEST(Heartbeat, TheGreatestTimeoutIsNone) {
  const auto alone = single_rank();
  std::atomic<bool> has_sent{false};
  Heartbeat heartbeat(
      *alone, {.timeout = milliseconds::max(), .progress = [&](std::uint64_t, std::uint64_t) {
                 has_sent = true;
                 has_sent.notify_one();
               }});
  heartbeat.agree("writing", [&] {
    has_sent.wait(false);
    heartbeat.check();
  });
}

TEST(Heartbeat, OneRankAloneCanBeStoppedToo) {
  const auto alone = single_rank();
  Heartbeat heartbeat(*alone, {.timeout = milliseconds(10)});
  EXPECT_THAT(error_of([&] { heartbeat.agree("writing", [&] { work_on(heartbeat); }); }).message(),
              HasSubstr("rank 0 is still writing"));
}

}  // namespace
}  // namespace dckpt::heartbeat_test
