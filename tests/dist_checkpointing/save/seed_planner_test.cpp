#include "dist_checkpointing/save/seed_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist_checkpointing/open.h"
#include "dist_checkpointing/rewrite/remove_sharded_tensors.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/comm/threads.h"
#include "tests/support/code_of.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
namespace {

namespace fs = std::filesystem;

constexpr int kRanks = 3;

StateDict state_of(int rank, DType dtype = DType::kFloat32) {
  StateDict state;
  state["w"] = ShardedTensor::from_rank_offsets("w", Tensor::zeros(dtype, {2, 3}),
                                                {{.axis = 0, .rank = rank, .count = kRanks}});
  state["optimizer"] = ShardedTensor::whole("optimizer.w", Tensor::zeros(DType::kFloat32, {5}),
                                            {.replica_id = rank});
  state["rng"] = ShardedObject{
      .key = "rng", .data = Value(rank), .global_shape = {kRanks}, .global_offset = {rank}};
  state["iteration"] = 7;
  return state;
}

class SeedPlanner : public ::testing::Test {
 protected:
  /// Saves a first checkpoint as one job.
  void save_first(const SaveOptions& options) {
    run_ranks(kRanks, [&](Communicator& comm) {
      save(state_of(comm.rank()), directory_ / "first", options, comm);
    });
  }

  struct Outcome {
    bool seeded = false;
    bool hit = false;
  };

  /// Another job begins with what the first checkpoint keeps, and saves.
  Outcome resume(const SaveOptions& options, const std::function<StateDict(int rank)>& state,
                 const std::string& name = "second") {
    Outcome outcome;
    run_ranks(kRanks, [&](Communicator& comm) {
      SavePlanner planner = make_planner(options);
      const bool seeded = seed_planner(planner, directory_ / "first", comm);
      save(state(comm.rank()), directory_ / name, options, comm, planner);
      if (comm.rank() == 0) outcome = {seeded, planner.cache_hit()};
    });
    return outcome;
  }

  TempDir directory_;
};

TEST_F(SeedPlanner, AResumedJobOfTheSameStructureDoesNotSendPlans) {
  for (const bool parallel : {false, true}) {
    const SaveOptions options{
        .planner = {.keep_plans = true}, .parallel = {.enabled = parallel}, .overwrite = true};
    save_first(options);
    const Outcome outcome = resume(options, [](int rank) { return state_of(rank); });
    EXPECT_TRUE(outcome.seeded);
    EXPECT_TRUE(outcome.hit);
    const Metadata first = open_checkpoint(directory_ / "first")->metadata();
    const Metadata second = open_checkpoint(directory_ / "second")->metadata();
    ASSERT_EQ(second.tensors.size(), first.tensors.size());
    for (std::size_t i = 0; i < first.tensors.size(); ++i) {
      EXPECT_EQ(second.tensors[i].key, first.tensors[i].key);
      EXPECT_EQ(second.tensors[i].chunks, first.tensors[i].chunks);
      EXPECT_EQ(second.tensors[i].places, first.tensors[i].places);
    }
    EXPECT_EQ(second.objects.size(), first.objects.size());
  }
}

TEST_F(SeedPlanner, AnotherStructureOnOneRankIsPlannedAnew) {
  const SaveOptions options{.planner = {.keep_plans = true}};
  save_first(options);
  const Outcome other_replica = resume(options, [](int rank) {
    StateDict state = state_of(rank);
    state["optimizer"] = ShardedTensor::whole("optimizer.w", Tensor::zeros(DType::kFloat32, {5}),
                                              {.replica_id = (rank + 1) % kRanks});
    return state;
  });
  EXPECT_TRUE(other_replica.seeded);
  EXPECT_FALSE(other_replica.hit);
  EXPECT_EQ(
      code_of([&] {
        resume(
            options,
            [](int rank) { return state_of(rank, rank == 1 ? DType::kInt32 : DType::kFloat32); },
            "third");
      }),
      "mismatch");
}

TEST_F(SeedPlanner, PlansOfAnotherNumberOfRanksAreNotTaken) {
  save_first({.planner = {.keep_plans = true}});
  run_ranks(kRanks - 1, [&](Communicator& comm) {
    SavePlanner planner = make_planner({});
    EXPECT_FALSE(seed_planner(planner, directory_ / "first", comm));
  });
}

TEST_F(SeedPlanner, PlansAreKeptOnRequestOnly) {
  save_first({});
  EXPECT_TRUE(open_checkpoint(directory_ / "first")->metadata().kept_plans.empty());
  const Outcome outcome = resume({}, [](int rank) { return state_of(rank); });
  EXPECT_FALSE(outcome.seeded);
  EXPECT_FALSE(outcome.hit);
}

TEST_F(SeedPlanner, AfterKeysWereRemovedAJobThatStillHasThemSavesThem) {
  const SaveOptions options{.planner = {.keep_plans = true}};
  save_first(options);
  remove_sharded_tensors(directory_ / "first", "optimizer");
  resume(options, [](int rank) { return state_of(rank); });
  EXPECT_NE(open_checkpoint(directory_ / "second")->metadata().find_tensor("optimizer.w"), nullptr);
}

TEST_F(SeedPlanner, ACheckpointThatIsNotThereFailsOnEveryRank) {
  run_ranks(2, [&](Communicator& comm) {
    SavePlanner planner = make_planner({});
    EXPECT_EQ(code_of([&] { seed_planner(planner, directory_ / "none", comm); }), "io");
  });
}

}  // namespace
}  // namespace dckpt
