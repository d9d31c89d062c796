#include "dist_checkpointing/save/warm_plan_cache.h"

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

class WarmPlanCache : public ::testing::Test {
 protected:
  /// Saves a first checkpoint as one job.
  void save_first(const SaveOptions& options) {
    run_ranks(kRanks, [&](Communicator& comm) {
      save(state_of(comm.rank()), directory_ / "first", options, comm);
    });
  }

  struct Outcome {
    bool warm = false;
    bool hit = false;
  };

  /// Another job begins with what the first checkpoint keeps, and saves.
  Outcome resume(const SaveOptions& options, const std::function<StateDict(int rank)>& state,
                 const std::string& name = "second") {
    Outcome outcome;
    run_ranks(kRanks, [&](Communicator& comm) {
      SavePlanCache cache;
      const bool warm = warm_plan_cache(cache, directory_ / "first", comm);
      const SaveReport report = save(state(comm.rank()), directory_ / name, options, comm, cache);
      if (comm.rank() == 0) outcome = {warm, report.plan_cached};
    });
    return outcome;
  }

  TempDir directory_;
};

TEST_F(WarmPlanCache, AResumedJobOfTheSameStructureDoesNotSendPlans) {
  for (const bool parallel : {false, true}) {
    const SaveOptions options{
        .planner = {.keep_plans = true}, .parallel = {.enabled = parallel}, .overwrite = true};
    save_first(options);
    const Outcome outcome = resume(options, [](int rank) { return state_of(rank); });
    EXPECT_TRUE(outcome.warm);
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

TEST_F(WarmPlanCache, AnotherStructureOnOneRankIsPlannedAnew) {
  const SaveOptions options{.planner = {.keep_plans = true}};
  save_first(options);
  const Outcome other_replica = resume(options, [](int rank) {
    StateDict state = state_of(rank);
    state["optimizer"] = ShardedTensor::whole("optimizer.w", Tensor::zeros(DType::kFloat32, {5}),
                                              {.replica_id = (rank + 1) % kRanks});
    return state;
  });
  EXPECT_TRUE(other_replica.warm);
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

TEST_F(WarmPlanCache, PlansOfAnotherNumberOfRanksAreNotTaken) {
  save_first({.planner = {.keep_plans = true}});
  run_ranks(kRanks - 1, [&](Communicator& comm) {
    SavePlanCache cache;
    EXPECT_FALSE(warm_plan_cache(cache, directory_ / "first", comm));
  });
}

TEST_F(WarmPlanCache, PlansAreKeptOnRequestOnly) {
  save_first({});
  EXPECT_TRUE(open_checkpoint(directory_ / "first")->metadata().cached_plans.empty());
  const Outcome outcome = resume({}, [](int rank) { return state_of(rank); });
  EXPECT_FALSE(outcome.warm);
  EXPECT_FALSE(outcome.hit);
}

TEST_F(WarmPlanCache, AfterKeysWereRemovedAJobThatStillHasThemSavesThem) {
  const SaveOptions options{.planner = {.keep_plans = true}};
  save_first(options);
  remove_sharded_tensors(directory_ / "first", "optimizer");
  resume(options, [](int rank) { return state_of(rank); });
  EXPECT_NE(open_checkpoint(directory_ / "second")->metadata().find_tensor("optimizer.w"), nullptr);
}

TEST_F(WarmPlanCache, ACheckpointThatIsNotThereFailsOnEveryRank) {
  run_ranks(2, [&](Communicator& comm) {
    SavePlanCache cache;
    EXPECT_EQ(code_of([&] { warm_plan_cache(cache, directory_ / "none", comm); }), "io");
  });
}

}  // namespace
}  // namespace dckpt
