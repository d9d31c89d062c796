// A save that is requested while others have not ended.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "strategies/comm/threads.h"
#include "tests/dist_checkpointing/save/gated_saves.h"
#include "tests/support/expect_error.h"

namespace dckpt::save_while_busy_test {
namespace {

using ::testing::AllOf;
using testing::error_of;
using testing::gate;
using ::testing::HasSubstr;

class SaveWhileBusy : public testing::GatedSaves {};

TEST_F(SaveWhileBusy, ASaveMayBeSkippedWhileAnotherRuns) {
  SaveOptions options = gated();
  options.async.when_busy = WhenBusy::kSkip;
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(options, comm);
    EXPECT_FALSE(saver.busy());
    const PendingSave first = saver.save(state_of(comm.rank(), 1), path("first"));
    EXPECT_TRUE(saver.busy());
    const PendingSave second = saver.save(state_of(comm.rank(), 2), path("second"));
    EXPECT_TRUE(second.skipped() && second.done());
    second.wait_staged();
    const CheckpointError error = error_of([&] { second.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_THAT(error.what(), HasSubstr("the save was skipped, because the one before"));
    gate.open.release(2);
    first.wait();
    const PendingSave third = saver.save(state_of(comm.rank(), 3), path("third"));
    EXPECT_FALSE(third.skipped());
    third.wait();
  });
  expect_holds("first", 1);
  EXPECT_FALSE(std::filesystem::exists(path("second")));
  expect_holds("third", 3);
}

SaveOptions replacing(SaveOptions options) {
  options.async.when_busy = WhenBusy::kReplace;
  return options;
}

TEST_F(SaveWhileBusy, AQueuedSaveIsReplacedByALaterOne) {
  for (const bool is_lazy : {false, true}) {
    const SaveOptions options = replacing(is_lazy ? lazy() : gated());
    run_ranks(2, [&](Communicator& comm) {
      AsyncSaver saver(options, comm);
      for (const std::string round : {"a", "b"}) {
        StateDict states[] = {state_of(comm.rank(), 1), state_of(comm.rank(), 2),
                              state_of(comm.rank(), 3)};
        const std::weak_ptr<const void> second_memory =
            states[1]["w"].as_sharded_tensor().data->owner();
        const PendingSave first = saver.save(states[0], path(round + "1"));
        const PendingSave second = saver.save(std::exchange(states[1], {}), path(round + "2"));
        EXPECT_FALSE(second.done() || second.replaced());
        const PendingSave third = saver.save(states[2], path(round + "3"));
        EXPECT_TRUE(second.replaced() && second.done() && second_memory.expired());
        saver.wait_staged();
        overwrite(states[0]);
        overwrite(states[2]);
        EXPECT_TRUE(saver.busy());
        EXPECT_FALSE(first.done());
        const CheckpointError error = error_of([&] { second.wait(); });
        EXPECT_EQ(error.code(), ErrorCode::kCancelled);
        EXPECT_THAT(error.message(),
                    AllOf(HasSubstr("was replaced by that of"), HasSubstr(round + "3")));
        gate.open.release(2);
        saver.wait();
        EXPECT_FALSE(first.replaced() || third.replaced());
        second.cancel();
      }
    });
    for (const std::string round : {"a", "b"}) {
      expect_holds(round + "1", 1);
      expect_holds(round + "3", 3);
    }
    std::size_t entries = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path())) {
      ++entries;
      std::filesystem::remove_all(entry);
    }
    EXPECT_EQ(entries, 4U);
  }
}

TEST_F(SaveWhileBusy, TheNextSaveReusesThePlanOfOneThatWasReplaced) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(replacing(gated()), comm);
    std::vector<PendingSave> saves;
    for (const std::string name : {"running", "replaced", "too", "last"})
      saves.push_back(saver.save(state_of(comm.rank(), 1), path(name)));
    EXPECT_TRUE(saves[1].replaced() && saves[2].replaced());
    gate.open.release(2);
    EXPECT_EQ(saves[0].wait().why_planned, "first save");
    EXPECT_EQ(saves[3].wait().why_planned, "");
    EXPECT_TRUE(saves[3].wait().plan_cached);
  });
  expect_holds("last", 1);
}

TEST_F(SaveWhileBusy, ARankWhoseStateDoesNotFitIsWaitedForHoweverLongItTakes) {
  constexpr std::chrono::milliseconds kTimeout{400};
  std::array<StateDict, 2> states;
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    const std::int64_t rows = rank == 0 ? 1 : 8;  // rows of 4 MiB
    states[rank]["w"] = ShardedTensor::whole("w" + std::to_string(rank),
                                             Tensor::zeros(DType::kFloat32, {rows, 1 << 20}));
  }
  for (const WhenBusy when_busy : {WhenBusy::kWait, WhenBusy::kSkip, WhenBusy::kReplace}) {
    SaveOptions options = gated();
    options.async.when_busy = when_busy;
    options.async.staging_memory = std::uint64_t{16} << 20;
    const std::jthread slow_disk([&] {
      std::this_thread::sleep_for(4 * kTimeout);
      gate.open.release(4);  // for both saves
    });
    const auto body = [&](Communicator& comm) {
      const StateDict& state = states[static_cast<std::size_t>(comm.rank())];
      AsyncSaver saver(options, comm);
      saver.save(state, path("first"));
      saver.save(state, path("second"));
      saver.wait();
    };
    run_ranks(2, body, kTimeout);
    EXPECT_TRUE(verify(*open_checkpoint(path("first")), {}).ok());
    std::filesystem::remove_all(path("first"));
    std::filesystem::remove_all(path("second"));
    while (gate.open.try_acquire()) {
    }
  }
}

TEST_F(SaveWhileBusy, ASaveThatCannotBePlannedReplacesNothing) {
  for (const bool is_lazy : {false, true}) {
    run_ranks(2, [&](Communicator& comm) {
      AsyncSaver saver(replacing(is_lazy ? lazy() : gated()), comm);
      saver.save(state_of(comm.rank(), 1), path("first"));
      const PendingSave second = saver.save(state_of(comm.rank(), 2), path("second"));
      StateDict misfit = state_of(comm.rank(), 3);
      if (comm.rank() == 1)
        misfit["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kInt8, {7}));
      EXPECT_EQ(error_of([&] { saver.save(misfit, path("third")); }).code(), ErrorCode::kMismatch);
      EXPECT_FALSE(second.replaced());
      const PendingSave fourth = saver.save(state_of(comm.rank(), 4), path("fourth"));
      EXPECT_TRUE(second.replaced());
      gate.open.release(2);
      fourth.wait();
    });
    expect_holds("first", 1);
    expect_holds("fourth", 4);
    for (const char* const name : {"second", "third"})
      EXPECT_FALSE(std::filesystem::exists(path(name)));
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
      std::filesystem::remove_all(entry);
  }
}

TEST_F(SaveWhileBusy, AllRanksReplaceTheSameSaves) {
  run_ranks(3, [&](Communicator& comm) {
    AsyncSaver saver(replacing(gated()), comm);
    std::vector<PendingSave> saves;
    for (int i = 0; i < 40; ++i) {
      const Tensor tensor = Tensor::zeros(DType::kInt32, {3});
      StateDict state;
      state["w"] =
          ShardedTensor::from_rank_offsets("w", tensor, {{.rank = comm.rank(), .count = 3}});
      std::this_thread::sleep_for(std::chrono::microseconds(i % 3 * 500));
      saves.push_back(saver.save(state, path("step" + std::to_string(i))));
      if (i == 2) {  // the first one is still being written, so the second has been replaced
        gate.slow = true;
        gate.open.release();
      }
      if (i > 2 && i % 9 == comm.rank()) saves.back().wait();  // and the other ranks continue
    }
    saver.wait();
    Bytes mine;
    for (const PendingSave& save : saves) mine.push_back(std::byte{save.replaced()});
    for (const Bytes& others : comm.all_gather(mine)) EXPECT_EQ(others, mine);
    for (std::size_t i = 0; i < saves.size(); ++i)
      EXPECT_EQ(std::filesystem::exists(path("step" + std::to_string(i))), !saves[i].replaced());
    EXPECT_TRUE(saves[1].replaced());
    EXPECT_FALSE(saves[0].replaced() || saves.back().replaced());
  });
}

TEST_F(SaveWhileBusy, ASaveThatARankWaitsForIsNotReplaced) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(replacing(gated()), comm);
    saver.save(state_of(comm.rank(), 1), path("first"));
    const PendingSave second = saver.save(state_of(comm.rank(), 2), path("second"));
    gate.open.release(3);
    if (comm.rank() == 0) second.wait();
    saver.save(state_of(comm.rank(), 3), path("third"));
    EXPECT_FALSE(second.replaced());
  });
  for (const auto& [name, number] : {std::pair("first", 1), {"second", 2}, {"third", 3}})
    expect_holds(name, static_cast<float>(number));
}

TEST_F(SaveWhileBusy, AQueuedSaveRunsAlsoIfTheOneBeforeIsCancelledOrFails) {
  for (const bool fails : {false, true}) {
    run_ranks(2, [&](Communicator& comm) {
      if (fails) gate.fails_on = 0;
      AsyncSaver saver(replacing(gated()), comm);
      const PendingSave first = saver.save(state_of(comm.rank(), 1), path("first"));
      const PendingSave second = saver.save(state_of(comm.rank(), 2), path("second"));
      if (!fails) first.cancel();
      gate.open.release();
      while (!first.done()) std::this_thread::yield();
      comm.barrier();
      gate.fails_on = -1;
      EXPECT_THAT(error_of([&] { saver.save(state_of(comm.rank(), 3), path("third")); }).message(),
                  HasSubstr(fails ? "disk of this rank is full" : "was cancelled by rank"));
      gate.open.release();
      second.wait();
    });
    expect_holds("second", 2);
    EXPECT_FALSE(std::filesystem::exists(path("third")));
    std::filesystem::remove_all(path("second"));
  }
}

TEST_F(SaveWhileBusy, ACancelledSaveThatIsQueuedLetsTheStateGoAtOnce) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(replacing(lazy(kTooLittle)), comm);
    saver.save(state_of(comm.rank(), 1), path("first"));
    StateDict state = state_of(comm.rank(), 2);
    const std::weak_ptr<const void> memory = state["w"].as_sharded_tensor().data->owner();
    const PendingSave second = saver.save(std::exchange(state, {}), path("second"));
    second.cancel();
    second.wait_staged();
    EXPECT_TRUE(memory.expired());
    gate.open.release(2);
    EXPECT_EQ(error_of([&] { second.wait(); }).code(), ErrorCode::kCancelled);
    EXPECT_FALSE(second.replaced());
  });
  expect_holds("first", 1);
  EXPECT_FALSE(std::filesystem::exists(path("second")));
}

}  // namespace
}  // namespace dckpt::save_while_busy_test
