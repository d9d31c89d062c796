// A training run saves and resumes, in the foreground and in the background.

#include "dist_checkpointing/checkpointer/checkpointer.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>

#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tree.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::checkpointer_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(CheckpointerTest, SavesAndResumesWithAnyNumberOfRanks) {
  std::uint64_t iteration = 0;
  for (const int ranks : {1, 2, 4, 8}) {
    iteration += 100;
    job(ranks, [&](Checkpointer& checkpointer, Communicator& comm) {
      StateDict state = empty_state(comm.rank(), ranks);
      const auto resumed = checkpointer.load_latest(state);
      EXPECT_EQ(resumed.has_value(), iteration > 100);
      EXPECT_TRUE(!resumed || holds(state, iteration - 90, comm.rank(), ranks))
          << "saved by a job of another size";
      checkpointer.save(state_at(iteration, comm.rank(), ranks), iteration);
      checkpointer.save(state_at(iteration + 10, comm.rank(), ranks), iteration + 10);
      EXPECT_EQ(checkpointer.latest(), iteration + 10);
      StateDict before = empty_state(comm.rank(), ranks);
      checkpointer.load(before, iteration);
      EXPECT_TRUE(holds(before, iteration, comm.rank(), ranks));
    });
    EXPECT_EQ(tracker(), std::to_string(iteration + 10));
  }
}

TEST_F(CheckpointerTest, EverySaveReportsWhatItDid) {
  for (const bool in_background : {false, true}) {
    Policy policy;
    policy.save.async.enabled = in_background;
    const std::uint64_t first = in_background ? 300 : 100;
    job(
        2,
        [&](Checkpointer& checkpointer, Communicator& comm) {
          const PendingSave pending = checkpointer.save(state_at(first, comm.rank(), 2), first);
          EXPECT_TRUE(pending.done() || in_background);
          EXPECT_EQ(pending.wait().why_planned, "first save");
          EXPECT_EQ(pending.wait().files, 5U);
          EXPECT_TRUE(checkpointer.save(state_at(first + 100, comm.rank(), 2), first + 100)
                          .wait()
                          .plan_cached);
        },
        policy);
  }
}

/// Returns a state with one leaf of every kind that a load fills, everything of iteration `value`.
StateDict state_of_all_kinds(std::int64_t value, int rank, int ranks) {
  const auto of_value = [&](std::int64_t rows) {
    Tensor tensor = Tensor::empty(DType::kInt64, {rows, 3});
    std::fill_n(reinterpret_cast<std::int64_t*>(tensor.mutable_data()), tensor.numel(), value);
    return tensor;
  };
  ShardedTensorFactory halves{.key = "fc1", .data = of_value(4), .replica_id = rank};
  halves.build = [](const std::string& key, const Tensor& data, const ReplicaId& replica,
                    std::optional<FlattenedRange>) {
    return Value::list({ShardedTensor::whole(key + ".w", data.narrow(0, 0, 2).contiguous(),
                                             {.replica_id = replica}),
                        ShardedTensor::whole(key + ".v", data.narrow(0, 2, 2).contiguous(),
                                             {.replica_id = replica})});
  };
  halves.merge = [](const Value& parts) {
    Tensor merged = Tensor::empty(DType::kInt64, {4, 3});
    for (std::size_t i = 0; i < 2; ++i)
      std::memcpy(merged.data() + i * 48, parts.items()[i].as_tensor().data(), 48);
    return Value(merged);
  };
  const FlattenedRange range = rank == 0 ? FlattenedRange{0, 6} : FlattenedRange{6, 6};
  const Tensor flat = of_value(2).view({6}).narrow(0, 0, range.end - range.begin);
  return Value::dict(
      {{"w", ShardedTensor::from_rank_offsets("w", of_value(1),
                                              {{.axis = 0, .rank = rank, .count = ranks}})},
       {"layers", Value::list({Value::dict({{"fc1", halves}}), Value::dict({{"lr", value}})})},
       {"m", ShardedTensor::from_rank_offsets_flat("m", flat, {2, 3}, {}, range)},
       {"rng",
        ShardedObject{
            .key = "rng", .data = Value(value), .global_shape = {ranks}, .global_offset = {rank}}},
       {"local", LocalNonpersistentObject{Value("of rank " + std::to_string(rank))}},
       {"iteration", value}});
}

TEST_F(CheckpointerTest, OneTreeIsLoadedAndSavedForEver) {
  job(2, [](Checkpointer& checkpointer, Communicator& comm) {
    checkpointer.save(state_of_all_kinds(1, comm.rank(), 2), 1);
  });
  StateDict trees[2];
  for (int rank = 0; rank < 2; ++rank) trees[rank] = state_of_all_kinds(0, rank, 2);
  for (std::int64_t iteration = 1; iteration <= 3; ++iteration) {
    job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
      StateDict& state = trees[comm.rank()];
      const std::byte* const memory = state.at("w").as_tensor().data();
      const std::byte* const factory_memory =
          state.at("layers").items()[0].at("fc1").as_factory().data.data();
      EXPECT_EQ(checkpointer.resume(state).iteration, static_cast<std::uint64_t>(iteration));
      const StateDict expected = plain_state(state_of_all_kinds(iteration, comm.rank(), 2));
      EXPECT_EQ(plain_state(state), expected);
      EXPECT_EQ(state.at("w").as_tensor().data(), memory) << "filled in place";
      EXPECT_EQ(state.at("layers").items()[0].at("fc1").as_factory().data.data(), factory_memory);
      // Trains the state in the trainer's memory, then saves the same tree.
      for (const Value& leaf :
           {state.at("w"), state.at("layers").items()[0].at("fc1"), state.at("m")}) {
        const Tensor& tensor = leaf.as_tensor();
        std::fill_n(reinterpret_cast<std::int64_t*>(tensor.mutable_data()), tensor.numel(),
                    iteration + 1);
      }
      state["rng"] = ShardedObject{.key = "rng",
                                   .data = Value(iteration + 1),
                                   .global_shape = {2},
                                   .global_offset = {comm.rank()}};
      state["layers"].mutable_items()[1]["lr"] = state["iteration"] = iteration + 1;
      checkpointer.save(state, static_cast<std::uint64_t>(iteration + 1));
    });
  }
  EXPECT_EQ(load_sharded_metadata(root_ / "iter_0000004").size(),
            load_sharded_metadata(root_ / "iter_0000001").size());
}

TEST_F(CheckpointerTest, AStateThatHasLostItsDescriptionsIsNotSaved) {
  saved({100});
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = empty_state(comm.rank(), 2);
    checkpointer.resume(state);
    state["w"] = state["w"].as_tensor();
    EXPECT_THAT(error_of([&] { checkpointer.save(state, 200); }).what(),
                AllOf(HasSubstr("plain tensors in place of the ShardedTensors"), HasSubstr("'w'")));
  });
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = empty_state(comm.rank(), 2);
    load_plain(state, root_, {}, comm);
    EXPECT_TRUE(state.at("w").is_tensor());
    EXPECT_THAT(error_of([&] { checkpointer.save(state, 200); }).what(),
                HasSubstr("has sharded ones; describe"));
  });
  EXPECT_EQ(tracker(), "100");
}

TEST_F(CheckpointerTest, SavesInTheBackgroundAreRecordedThereToo) {
  Policy policy;
  policy.retention.keep_last = 2;
  job(
      2,
      [&](Checkpointer& checkpointer, Communicator& comm) {
        for (const std::uint64_t iteration : {100, 200, 300}) {
          StateDict state = state_at(iteration, comm.rank(), 2);
          checkpointer.save_async(state, iteration);
          const Tensor& mine = *state["w"].as_sharded_tensor().data;
          std::memset(mine.mutable_data(), 0xEE, mine.nbytes());
        }
        EXPECT_EQ(checkpointer.latest(), 300U) << "what is asked after a save knows of it";
        StateDict state = empty_state(comm.rank(), 2);
        checkpointer.load(state, 200);
        EXPECT_TRUE(holds(state, 200, comm.rank(), 2));
      },
      policy);
  EXPECT_EQ(tracker(), "300");
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000200", "iter_0000300", kTracker));
}

TEST_F(CheckpointerTest, ALazySaveIsDoneWithTheStateBeforeTheOptimizerStep) {
  Policy policy;
  policy.save.async = {.enabled = true, .snapshot = Snapshot::kLazy, .staging_memory = 0};
  job(
      2,
      [&](Checkpointer& checkpointer, Communicator& comm) {
        checkpointer.wait_staged();  // there is no save yet
        for (const std::uint64_t iteration : {100, 200, 300}) {
          StateDict state = state_at(iteration, comm.rank(), 2);
          checkpointer.save(state, iteration);
          checkpointer.wait_staged();
          const Tensor& mine = *state["w"].as_sharded_tensor().data;
          std::memset(mine.mutable_data(), 0xEE, mine.nbytes());
        }
      },
      policy);
  EXPECT_EQ(resumed(), 300);
}

/// Holds background saves back until told to continue.
struct HeldBack {
  SaveHooks hooks() {
    SaveHooks hooks;
    hooks.progress = [this](std::uint64_t, std::uint64_t) { go.wait(false); };
    return hooks;
  }
  std::atomic<bool> go{false};
};

TEST_F(CheckpointerTest, ASaveThatIsSkippedLeavesNoTrace) {
  Policy policy;
  policy.save.async = {.enabled = true, .when_busy = WhenBusy::kSkip};
  HeldBack background;
  run_ranks(2, [&](Communicator& comm) {
    Checkpointer checkpointer(root_, policy, comm, background.hooks());
    const auto save = [&](std::uint64_t iteration) {
      return checkpointer.save(state_at(iteration, comm.rank(), 2), iteration);
    };
    const PendingSave first = save(100);
    EXPECT_TRUE(save(200).skipped());
    EXPECT_FALSE(first.done());
    background.go = true;
    background.go.notify_all();
    first.wait();
    EXPECT_FALSE(save(300).skipped());
    EXPECT_EQ(checkpointer.latest(), 300U);
  });
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", "iter_0000300", kTracker));
}

TEST_F(CheckpointerTest, ASaveThatIsReplacedLeavesNoTrace) {
  Policy policy;
  policy.save.async = {.enabled = true, .when_busy = WhenBusy::kReplace};
  policy.retention.keep_last = 2;
  HeldBack background;
  run_ranks(2, [&](Communicator& comm) {
    Checkpointer checkpointer(root_, policy, comm, background.hooks());
    const auto save = [&](std::uint64_t iteration) {
      return checkpointer.save(state_at(iteration, comm.rank(), 2), iteration);
    };
    const PendingSave first = save(100);
    const PendingSave second = save(200);
    const PendingSave third = save(300);
    EXPECT_TRUE(second.replaced());
    EXPECT_FALSE(first.done() || third.done());
    background.go = true;
    background.go.notify_all();
    EXPECT_EQ(checkpointer.latest(), 300U);
    EXPECT_FALSE(save(400).replaced());
  });
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000300", "iter_0000400", kTracker));
}

TEST_F(CheckpointerTest, ThePolicySaysWhetherSavesGoToTheBackground) {
  Policy policy;
  policy.save.async.enabled = true;
  saved({100, 200}, policy);
  EXPECT_EQ(resumed(), 200);
}

TEST_F(CheckpointerTest, AFailureInTheBackgroundIsThrownByTheNextCallUnlessAllHaveHadIt) {
  fs::create_directories(root_ / kTracker / "not empty");
  const std::string failure =
      "recording iteration 100, which is saved and complete, failed on rank 0";
  const Warnings warnings;
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    checkpointer.save_async(state_at(100, comm.rank(), 2), 100);
    EXPECT_THAT(error_of([&] { checkpointer.latest(); }).what(), HasSubstr(failure));
    EXPECT_THAT(error_of([&] { checkpointer.latest(); }).what(), HasSubstr("a directory"));
    const PendingSave pending = checkpointer.save_async(state_at(200, comm.rank(), 2), 200);
    EXPECT_THAT(error_of([&] { pending.wait(); }).what(), HasSubstr("recording iteration 200"));
  });
  fs::remove_all(root_ / kTracker);
  job(1, [](Checkpointer& checkpointer, Communicator&) { EXPECT_EQ(checkpointer.latest(), 200U); });
  const std::string told = "a save in the background failed: " + failure;
  EXPECT_THAT(warnings.text(), HasSubstr(told));
  EXPECT_EQ(warnings.text().find(told), warnings.text().rfind(told)) << "once, not by each rank";
}

}  // namespace
}  // namespace dckpt::testing::checkpointer_test
