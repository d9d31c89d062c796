#include "dist_checkpointing/save/save_async.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <semaphore>
#include <utility>

#include "dist_checkpointing/inspect/diff.h"
#include "dist_checkpointing/inspect/verify.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/comm/threads.h"
#include "strategies/contract/registry.h"
#include "strategies/torch_dist/save_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
namespace {

using dckpt::testing::error_of;
using ::testing::HasSubstr;

/// torch_dist, but data are written only when the test lets them, and not at all on rank
/// `fails_on`.
struct Gate {
  std::counting_semaphore<64> open{0};
  std::atomic<int> fails_on{-1};
};
Gate gate;

class GatedStrategy final : public SaveStrategy {
 public:
  explicit GatedStrategy(const SaveOptions& options)
      : inner_(make_torch_dist_save_strategy(options)) {}
  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
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
  for (const std::uint64_t memory : {kTooLittle, std::uint64_t{1} << 20, std::uint64_t{9} << 20}) {
    SaveOptions options;
    options.async.staging_memory = memory;
    options.overwrite = true;
    run_ranks(2, [&](Communicator& comm) {
      AsyncSaver saver(options, comm);
      for (int i = 0; i < 3; ++i) {
        StateDict state = state_of(comm.rank(), static_cast<float>(i), 2000);  // 8 MB, one tensor
        saver.save(state, path("step" + std::to_string(i)));
        overwrite(state);
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
