#include "dist_checkpointing/save/save_async.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>

#include "dist_checkpointing/inspect/diff.h"
#include "dist_checkpointing/inspect/verify.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/warm_plan_cache.h"
#include "strategies/comm/threads.h"
#include "strategies/contract/registry.h"
#include "strategies/torch_dist/save_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
namespace {

using dckpt::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// torch_dist, but data are written only when the test lets them, and not at all on rank
/// `fails_on`.
struct Gate {
  std::counting_semaphore<64> open{0};
  std::atomic<int> fails_on{-1};
  std::atomic<bool> slow{false};  ///< writing takes different times, and waits for nothing
  std::atomic<int> writes{0};
  std::atomic<int> niceness{0};  ///< of the thread that wrote last
};
Gate gate;

class GatedStrategy final : public SaveStrategy {
 public:
  explicit GatedStrategy(const SaveOptions& options)
      : inner_(make_torch_dist_save_strategy(options)) {}
  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    gate.niceness = getpriority(PRIO_PROCESS, 0);
    if (gate.slow)
      std::this_thread::sleep_for(std::chrono::microseconds(gate.writes++ * 7 % 11 * 300));
    else
      gate.open.acquire();
    if (rank == gate.fails_on)
      throw CheckpointError(ErrorCode::kIo, "the disk of this rank is full");
    return inner_->write_data(storage, directory, rank, plan, source);
  }
  void write_metadata(Storage& storage, const std::string& directory, const Metadata& metadata,
                      const CommonState* common) const override {
    inner_->write_metadata(storage, directory, metadata, common);
  }

 private:
  std::unique_ptr<SaveStrategy> inner_;
};

class SaveAsync : public ::testing::Test {
 protected:
  SaveAsync() {
    register_strategy(SaveStrategyEntry{
        .name = "gated", .about = "for this test", .make = [](const SaveOptions& options) {
          SaveOptions inner = options;
          inner.strategy = {};
          return std::make_unique<GatedStrategy>(inner);
        }});
    gate.fails_on = -1;
    gate.slow = false;
    while (gate.open.try_acquire()) {
    }
  }

  static SaveOptions gated() {
    SaveOptions options;
    options.strategy.name = "gated";
    return options;
  }

  static SaveOptions lazy(std::uint64_t staging_memory = std::uint64_t{1} << 30) {
    SaveOptions options = gated();
    options.async.snapshot = Snapshot::kLazy;
    options.async.staging_memory = staging_memory;
    return options;
  }
  /// Staging memory that state_of() does not fit in: the writer takes it from the state itself.
  static constexpr std::uint64_t kTooLittle = 0;

  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }

  /// Half of a tensor, all elements `number`; some common state with a tensor in a tuple; an
  /// object.
  static StateDict state_of(int rank, float number, std::int64_t rows = 300) {
    Tensor half = Tensor::empty(DType::kFloat32, {rows, 1000});
    std::fill_n(reinterpret_cast<float*>(half.data()), half.numel(), number);
    Tensor step = Tensor::empty(DType::kFloat32, {1});
    *reinterpret_cast<float*>(step.data()) = number;
    StateDict state;
    state["w"] =
        ShardedTensor::from_rank_offsets("w", half, {{.axis = 0, .rank = rank, .count = 2}});
    state["rng"] = ShardedObject{.key = "rng",
                                 .data = Value(std::int64_t{rank}),
                                 .global_shape = {2},
                                 .global_offset = {rank}};
    state["common"] = Value::tuple({Value(step), Value("text")});
    return state;
  }

  static void overwrite(StateDict& state) {
    const Tensor& half = *state["w"].as_sharded_tensor().data;
    std::memset(half.data(), 0, half.nbytes());
    const Tensor& step = state["common"].items()[0].as_tensor();
    std::memset(step.data(), 0, step.nbytes());
  }

  void expect_holds(const std::string& name, float number) const {
    EXPECT_TRUE(verify(*open_checkpoint(path(name)), {.deep = true}).ok());
    const StateDict tensors = load_plain_tensors(path(name));
    const Tensor& w = tensors.at("w").as_tensor();
    const auto* const values = reinterpret_cast<const float*>(w.data());
    EXPECT_TRUE(std::all_of(values, values + w.numel(), [&](float value) {
      return value == number;
    })) << name;
    const StateDict common = load_common_state(path(name));
    EXPECT_EQ(*reinterpret_cast<const float*>(common.at("common").items()[0].as_tensor().data()),
              number);
  }

  TempDir directory_;
};

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

TEST_F(SaveAsync, ALazySaveReturnsBeforeTheStateMayChange) {
  run_ranks(2, [&](Communicator& comm) {
    AsyncSaver saver(lazy(kTooLittle), comm);
    StateDict state = state_of(comm.rank(), 7);
    const PendingSave pending = saver.save(state, path("a"));
    constexpr std::uint64_t kBytes = 300 * 1000 * 4;
    EXPECT_EQ(pending.progress(), (SaveProgress{.total = kBytes})) << "nothing has been copied yet";
    const Tensor& step = state["common"].items()[0].as_tensor();
    std::memset(step.data(), 0, step.nbytes());  // is no ShardedTensor
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
    pending.cancel();
    pending.wait_staged();
    EXPECT_FALSE(pending.done());
    EXPECT_TRUE(memory.expired());
    gate.open.release();
    const CheckpointError error = error_of([&] { pending.wait(); });
    EXPECT_EQ(error.code(), ErrorCode::kCancelled);
    EXPECT_THAT(error.message(), HasSubstr("was cancelled by rank"));
  });
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(SaveAsync, ASaveMayBeSkippedWhileAnotherRuns) {
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

TEST_F(SaveAsync, AQueuedSaveIsReplacedByALaterOne) {
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

TEST_F(SaveAsync, TheNextSaveReusesThePlanOfOneThatWasReplaced) {
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

TEST_F(SaveAsync, PlansThatACheckpointKeepsAreForSavesThatAreQueuedToo) {
  run_ranks(2, [&](Communicator& comm) {
    save(state_of(comm.rank(), 1), path("kept"), {.planner = {.keep_plans = KeepPlans::kMetadata}},
         comm);
    SavePlanCache cache;
    ASSERT_TRUE(warm_plan_cache(cache, path("kept"), comm));
    AsyncSaver saver(replacing(gated()), comm, {}, &cache);
    std::vector<PendingSave> saves;
    for (const std::string name : {"running", "replaced", "last"})
      saves.push_back(saver.save(state_of(comm.rank(), 2), path(name)));
    EXPECT_TRUE(saves[1].replaced());
    gate.open.release(2);
    for (const int i : {0, 2}) EXPECT_EQ(saves[static_cast<std::size_t>(i)].wait().why_planned, "");
  });
  expect_holds("last", 2);
}

TEST_F(SaveAsync, ASaveThatCannotBePlannedReplacesNothing) {
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

TEST_F(SaveAsync, AllRanksReplaceTheSameSaves) {
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
      if (i > 2 && i % 9 == comm.rank()) saves.back().wait();  // and the other ranks go on
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

TEST_F(SaveAsync, ASaveThatARankWaitsForIsNotReplaced) {
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

TEST_F(SaveAsync, AQueuedSaveRunsAlsoIfTheOneBeforeIsCancelledOrFails) {
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

TEST_F(SaveAsync, ACancelledSaveThatIsQueuedLetsTheStateGoAtOnce) {
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
        if (when_busy == WhenBusy::kReplace && i == 1) pending.wait();
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
                     comm);  // else the comparison of common states finds it before
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
}  // namespace dckpt
