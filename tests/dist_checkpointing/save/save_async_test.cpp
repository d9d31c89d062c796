#include "dist_checkpointing/save/save_async.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "operations/inspect/diff.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/threads.h"
#include "tests/dist_checkpointing/save/gated_saves.h"
#include "tests/support/expect_error.h"

namespace dckpt::save_async_test {
namespace {

using testing::error_of;
using testing::gate;
using ::testing::HasSubstr;

class SaveAsync : public testing::GatedSaves {};

TEST_F(SaveAsync, TheStateMayChangeAsSoonAsSaveHasReturned) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(gated(), comm);
    StateDict state = state_of(comm.rank(), 7);
    const PendingSave pending = saver.save(state, path("a"));
    EXPECT_FALSE(pending.done());
    EXPECT_FALSE(std::filesystem::exists(path("a"))) << "nothing has been written yet";
    overwrite(state);
    gate.open.release();
    pending.wait();
    EXPECT_TRUE(pending.done());
  });
  expect_holds("a", 7);
}

#if !defined(__SANITIZE_THREAD__)  // ThreadSanitizer ends forks of programs with several threads
TEST_F(SaveAsync, AForkOfTheProcessWaitsForNoSaveOfItsParent) {
  const StateDict state =
      Value::dict({{"w", ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {8}))}});
  const auto alone = single_rank();
  auto saver = std::make_unique<AsyncSaver>(gated(), *alone);
  const PendingSave pending = saver->save(state, path("a"));
  // A fork while another thread allocates would inherit a lock of AddressSanitizer that is never
  // released.
  gate.waits.wait(0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const auto is_refused = [&](const auto& call) {
      const auto failure = failure_of(call);
      return failure && failure->code() == ErrorCode::kUnavailable;
    };
    const bool right = pending.done() && is_refused([&] { pending.wait(); }) &&
                       is_refused([&] { pending.wait_staged(); }) &&
                       is_refused([&] { saver->wait(); }) &&
                       is_refused([&] { saver->save(state, path("b")); });
    pending.cancel();
    saver.reset();
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  gate.open.release();
  pending.wait();
  EXPECT_TRUE(std::filesystem::exists(path("a")));
}
#endif

TEST_F(SaveAsync, ALazySaveReturnsBeforeTheStateMayChange) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(lazy(kTooLittle), comm);
    StateDict state = state_of(comm.rank(), 7);
    const PendingSave pending = saver.save(state, path("a"));
    constexpr std::uint64_t kBytes = 300 * 1000 * 4;
    EXPECT_EQ(pending.progress(), (SaveProgress{.total = kBytes})) << "nothing has been copied yet";
    const Tensor& step = state["common"].items()[0].as_tensor();
    std::memset(step.mutable_data(), 0, step.nbytes());  // not a ShardedTensor
    gate.open.release();
    saver.wait_staged();
    EXPECT_EQ(pending.progress().released, kBytes);
    overwrite(state);
    pending.wait();
    EXPECT_EQ(pending.progress(), (SaveProgress{kBytes, kBytes, kBytes}));
  });
  expect_holds("a", 7);
}

TEST_F(SaveAsync, ALazySaveCopiesWhileNothingIsWrittenYet) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(lazy(), comm);
    StateDict state = state_of(comm.rank(), 7);
    const PendingSave pending = saver.save(state, path("a"));
    pending.wait_staged();
    overwrite(state);
    EXPECT_EQ(pending.progress().written, 0U);
    EXPECT_FALSE(pending.done());
    comm.barrier();  // the gate lets any rank pass
    gate.open.release();
  });
  expect_holds("a", 7);
}

TEST_F(SaveAsync, WhoeverWaitsForALazySaveMayChangeTheState) {
  gate.open.release(6);
  run_ranks(2, [&](Communicator& comm) {
    StateDict first = state_of(comm.rank(), 1);
    StateDict second = state_of(comm.rank(), 2);
    StateDict third = state_of(comm.rank(), 3);
    {
      AsyncSaver saver(lazy(kTooLittle), comm);
      saver.save(first, path("first"));
      saver.wait();
      overwrite(first);
      saver.save(second, path("second"));
      saver.save(third, path("third"));
      overwrite(second);
    }
    overwrite(third);
  });
  expect_holds("first", 1);
  expect_holds("second", 2);
  expect_holds("third", 3);
}

TEST_F(SaveAsync, ALazySaveThatFailsLeavesItsErrorToWait) {
  gate.fails_on = 1;
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(lazy(kTooLittle), comm);
    const PendingSave pending = saver.save(state_of(comm.rank(), 1), path("a"));
    gate.open.release();
    pending.wait_staged();
    EXPECT_THAT(error_of([&] { pending.wait(); }).what(),
                HasSubstr("the disk of this rank is full"));
  });
}

TEST_F(SaveAsync, ACancelledLazySaveLetsTheStateGoAtOnce) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(lazy(kTooLittle), comm);
    StateDict state = state_of(comm.rank(), 1);
    const std::weak_ptr<const void> memory = state["w"].as_sharded_tensor().data->owner();
    const PendingSave pending = saver.save(std::exchange(state, {}), path("a"));
    EXPECT_FALSE(memory.expired());
    comm.barrier();  // the gate lets any rank pass, and a canceled rank ends the others
    pending.cancel();
    pending.wait_staged();
    EXPECT_FALSE(pending.done());
    EXPECT_TRUE(memory.expired());
    comm.barrier();
    gate.open.release();
    const CheckpointError error = error_of([&] { pending.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_THAT(error.message(), HasSubstr("was cancelled by rank"));
  });
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(SaveAsync, WritersLeaveTheProcessorsToTheTrainer) {
  const int mine = getpriority(PRIO_PROCESS, 0);
  const auto alone = single_rank();
  AsyncSaver saver(gated(), *alone);
  StateDict state;
  state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kInt8, {7}));
  const PendingSave pending = saver.save(state, path("saved"));
  gate.open.release();
  pending.wait();
  EXPECT_EQ(gate.niceness, std::max(mine, 10));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), mine);
}

TEST_F(SaveAsync, IsEquivalentToASaveInTheForeground) {
  run_ranks(2, [&](Communicator& comm) {
    save(state_of(comm.rank(), 3), path("sync"), {}, comm);
    AsyncSaver saver({}, comm);
    saver.save(state_of(comm.rank(), 3), path("async"));
  });
  EXPECT_TRUE(diff(*open_checkpoint(path("sync")), *open_checkpoint(path("async"))).equal());
  expect_holds("async", 3);
}

TEST_F(SaveAsync, AStateLargerThanTheStagingMemoryIsStreamed) {
  for (const auto& [memory, when_busy] : {std::pair(kTooLittle, WhenBusy::kWait),
                                          {std::uint64_t{1} << 20, WhenBusy::kWait},
                                          {std::uint64_t{9} << 20, WhenBusy::kWait},
                                          {kTooLittle, WhenBusy::kReplace},
                                          {std::uint64_t{9} << 20, WhenBusy::kReplace}}) {
    SaveOptions options;
    options.async.when_busy = when_busy;
    options.async.staging_memory = memory;
    options.overwrite = true;
    run_ranks(2, [&](Communicator& comm) {
      AsyncSaver saver(options, comm);
      for (int i = 0; i < 3; ++i) {
        StateDict state = state_of(comm.rank(), static_cast<float>(i), 2000);  // 8 MB, one tensor
        const PendingSave pending = saver.save(state, path("step" + std::to_string(i)));
        overwrite(state);
        if (options.async.when_busy == WhenBusy::kReplace && i == 1) pending.wait();
      }
    });
    for (int i = 0; i < 3; ++i) expect_holds("step" + std::to_string(i), static_cast<float>(i));
  }
}

TEST_F(SaveAsync, ASaveWaitsForTheOneBefore) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(gated(), comm);
    const PendingSave first = saver.save(state_of(comm.rank(), 1), path("first"));
    gate.open.release(2);
    const PendingSave second = saver.save(state_of(comm.rank(), 2), path("second"));
    EXPECT_TRUE(first.done());
    second.wait();
  });
  expect_holds("first", 1);
  expect_holds("second", 2);
}

TEST_F(SaveAsync, AnErrorInTheBackgroundIsTheSameOnEveryRankAndLeavesNothing) {
  gate.fails_on = 1;
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(gated(), comm);
    const PendingSave pending = saver.save(state_of(comm.rank(), 1), path("a"));
    gate.open.release();
    const CheckpointError error = error_of([&] { pending.wait(); });
    EXPECT_THAT(error.what(), HasSubstr("the disk of this rank is full"));
    EXPECT_EQ(error.context().rank, 1);
    comm.barrier();
    EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
    gate.fails_on = -1;
    comm.barrier();
    gate.open.release();
    saver.save(state_of(comm.rank(), 2), path("b")).wait();
  });
  expect_holds("b", 2);
}

TEST_F(SaveAsync, AnErrorThatARankHasNotAskedForIsThrownByTheNextSaveOnAll) {
  gate.fails_on = 0;
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(gated(), comm);
    const PendingSave pending = saver.save(state_of(comm.rank(), 1), path("a"));
    gate.open.release();
    if (comm.rank() == 0) {
      EXPECT_THAT(error_of([&] { pending.wait(); }).what(), HasSubstr("full"));
    }
    EXPECT_THAT(error_of([&] { saver.save(state_of(comm.rank(), 2), path("b")); }).what(),
                HasSubstr("the disk of this rank is full"));
    gate.fails_on = -1;
    comm.barrier();
    gate.open.release();
    saver.save(state_of(comm.rank(), 2), path("b")).wait();
  });
  EXPECT_FALSE(std::filesystem::exists(path("a")));
  expect_holds("b", 2);
}

TEST_F(SaveAsync, ARankMayWaitWhereAnotherJustSavesAgain) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver({}, comm);
    saver.save(state_of(comm.rank(), 1), path("a"));
    if (comm.rank() == 0) saver.wait();
    saver.save(state_of(comm.rank(), 2), path("b"));
    saver.wait();
    if (comm.rank() == 1) saver.wait();
    comm.barrier();
  });
  expect_holds("a", 1);
  expect_holds("b", 2);
}

TEST_F(SaveAsync, AnErrorBeforeTheBackgroundIsThrownAtOnce) {
  std::filesystem::create_directories(path("a") / "something");
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver({}, comm);
    EXPECT_EQ(error_of([&] { saver.save(state_of(comm.rank(), 1), path("a")); }).code(),
              ErrorCode::kAlreadyExists);
    saver.save(state_of(comm.rank(), 2), path("b")).wait();
  });
  expect_holds("b", 2);
}

TEST_F(SaveAsync, WhatCannotBePreparedOnOneRankIsNotStartedOnTheOthers) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver({.planner = {.validate = false}},
                     comm);  // else the comparison of common states finds it first
    StateDict state = state_of(comm.rank(), 1);
    if (comm.rank() == 0)
      state["unwritable"] = Opaque{.callable = Global{"collections", "Counter"},
                                   .args = Value(1)};  // arguments are a tuple
    EXPECT_THAT(error_of([&] { saver.save(state, path("a")); }).what(),
                HasSubstr("preparing the save in the background failed on rank 0 of 2"));
    saver.save(state_of(comm.rank(), 2), path("b")).wait();
  });
  EXPECT_FALSE(std::filesystem::exists(path("a")));
  expect_holds("b", 2);
}

TEST_F(SaveAsync, WhatFollowsThePublicationRunsInTheBackgroundToo) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver({}, comm);
    std::vector<std::int64_t> sum;
    saver
        .save(state_of(comm.rank(), 1), path("a"),
              [&](Communicator& own) {
                EXPECT_TRUE(std::filesystem::exists(path("a") / "metadata.json"));
                const std::int64_t one = 1;
                sum = own.all_reduce({&one, 1}, ReduceOp::kSum);
              })
        .wait();
    EXPECT_EQ(sum, std::vector<std::int64_t>{2});
    const PendingSave failing = saver.save(state_of(comm.rank(), 1), path("b"), [](Communicator&) {
      throw CheckpointError(ErrorCode::kIo, "no tracker");
    });
    EXPECT_THAT(error_of([&] { failing.wait(); }).what(), HasSubstr("no tracker"));
  });
}

}  // namespace
}  // namespace dckpt::save_async_test
