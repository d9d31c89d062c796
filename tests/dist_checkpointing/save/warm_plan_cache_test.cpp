#include "dist_checkpointing/save/warm_plan_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/planning/save/plan_file.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "strategies/comm/threads.h"
#include "strategies/registry/registry.h"
#include "tests/support/code_of.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::warm_plan_cache_test {
namespace {

namespace fs = std::filesystem;

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

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
  void save_first(
      const SaveOptions& options,
      const std::function<StateDict(int rank)>& state = [](int rank) { return state_of(rank); }) {
    run_ranks(kRanks, [&](Communicator& comm) {
      save(state(comm.rank()), directory_ / "first", options, comm);
    });
  }

  struct Outcome {
    bool warm = false;
    bool hit = false;
    std::string why_planned{};
  };

  /// Runs another job that begins with what the first checkpoint keeps, and saves.
  Outcome resume(const SaveOptions& options, const std::function<StateDict(int rank)>& state,
                 const std::string& name = "second") {
    Outcome outcome;
    run_ranks(kRanks, [&](Communicator& comm) {
      SavePlanCache cache;
      const bool warm = warm_plan_cache(cache, directory_ / "first", comm);
      const SaveReport report = save(state(comm.rank()), directory_ / name, options, comm, cache);
      if (comm.rank() == 0) outcome = {warm, report.plan_cached, report.why_planned};
    });
    return outcome;
  }

  fs::path file() const { return directory_ / "first" / kPlanFile; }

  TempDir directory_;
};

TEST_F(WarmPlanCache, AResumedJobOfTheSameStructureDoesNotSendPlans) {
  for (const bool parallel : {false, true}) {
    const SaveOptions options{.planner = {.keep_plans = KeepPlans::kFile},
                              .parallel = {.enabled = parallel},
                              .overwrite = true};
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

TEST_F(WarmPlanCache, AResumedJobListsPathsInTheOrderOfOneThatWentOn) {
  const SaveOptions options{.compat = Compat::kDcp,
                            .planner = {.kind = PlannerKind::kDcp, .keep_plans = KeepPlans::kFile}};
  const auto state = [](int rank) {  // torch begins with the keys of the last rank
    StateDict tree;
    tree["of all"] = Tensor::zeros(DType::kFloat32, {2});
    tree["of rank " + std::to_string(rank)] = Tensor::zeros(DType::kFloat32, {2});
    tree["count of rank " + std::to_string(rank)] = rank;
    return tree;
  };
  run_ranks(kRanks, [&](Communicator& comm) {
    SavePlanCache cache;
    for (const char* const name : {"first", "next"})
      save(state(comm.rank()), directory_ / name, options, comm, cache);
  });
  EXPECT_TRUE(resume(options, state).hit);
  const auto paths = [&](const char* name) {
    return open_checkpoint(directory_ / name)->metadata().paths;
  };
  EXPECT_EQ(paths("next").front().first, "of all");
  EXPECT_EQ(paths("next")[1].first, "of rank 2");
  EXPECT_EQ(paths("second"), paths("next"));
}

/// Returns what each strategy can store: tensors of all ranks, cut or whole, and of one; objects
/// and common values.
StateDict state_for(const SaveStrategyEntry& strategy, int rank) {
  const Capabilities& can = strategy.capabilities;
  StateDict state;
  for (const std::string key : {"z", "a", "m"}) {
    Tensor data = Tensor::zeros(DType::kBFloat16, {2, 4});
    data.requires_grad = true;
    state[key] = can.cut_tensors
                     ? ShardedTensor::from_rank_offsets(
                           key, data, {{.axis = 1, .rank = kRanks - 1 - rank, .count = kRanks}})
                     : ShardedTensor::whole(key, data, {.replica_id = rank});
  }
  const std::string layer = "layer." + std::to_string(kRanks - rank);
  state[layer] = ShardedTensor::whole(layer, Tensor::zeros(DType::kFloat32, {3 + rank}));
  if (can.objects)
    state["rng"] = ShardedObject{
        .key = "rng", .data = Value(rank), .global_shape = {kRanks}, .global_offset = {rank}};
  if (can.common_state) state["iteration"] = 7;
  return state;
}

TEST_F(WarmPlanCache, AreKeptOrRefusedByEachStrategyThatTrainersSaveWith) {
  std::vector<std::string> keeping;
  for (const SaveStrategyEntry& strategy : save_strategies()) {
    if (strategy.arrange || strategy.conventions.megatron_fsdp)
      continue;  // only conversions use
                 // these
    SCOPED_TRACE(strategy.name);
    const SaveOptions options{.strategy = {.name = strategy.name},
                              .planner = {.keep_plans = KeepPlans::kFile},
                              .overwrite = true};
    const auto state = [&](int rank) { return state_for(strategy, rank); };
    if (strategy.capabilities.plans == KeepPlans::kOff) {
      fs::remove_all(directory_ / "first");
      EXPECT_THAT(error_of([&] { save_first(options, state); }).what(),
                  HasSubstr("save.planner.keep_plans: strategy '" + strategy.name +
                            "' cannot keep plans; say off"));
      EXPECT_FALSE(fs::exists(directory_ / "first"));
      continue;
    }
    save_first(options, state);
    const Outcome outcome = resume(options, state);
    EXPECT_TRUE(outcome.hit) << outcome.why_planned;
    keeping.push_back(strategy.name);
  }
  EXPECT_THAT(keeping, UnorderedElementsAre("torch_dist", "dcp"));
}

TEST_F(WarmPlanCache, ACommonStateThatIsAnObjectIsPlannedToo) {
  const SaveOptions options{.compat = Compat::kMegatron019,
                            .planner = {.keep_plans = KeepPlans::kFile}};
  save_first(options);
  const Outcome outcome = resume(options, [](int rank) { return state_of(rank); });
  EXPECT_TRUE(outcome.hit) << outcome.why_planned;
}

TEST_F(WarmPlanCache, AnotherStructureOnOneRankIsPlannedAnew) {
  const SaveOptions options{.planner = {.keep_plans = KeepPlans::kFile}, .overwrite = true};
  save_first(options);
  const Outcome other_replica = resume(options, [](int rank) {
    StateDict state = state_of(rank);
    state["optimizer"] = ShardedTensor::whole("optimizer.w", Tensor::zeros(DType::kFloat32, {5}),
                                              {.replica_id = (rank + 1) % kRanks});
    return state;
  });
  EXPECT_TRUE(other_replica.warm);
  EXPECT_FALSE(other_replica.hit);
  EXPECT_THAT(other_replica.why_planned, HasSubstr("rank 0: the state is not the one"));
  EXPECT_EQ(
      code_of([&] {
        resume(
            options,
            [](int rank) { return state_of(rank, rank == 1 ? DType::kInt32 : DType::kFloat32); },
            "third");
      }),
      "mismatch");
  const Outcome more = resume(options, [](int rank) {
    StateDict state = state_of(rank);
    if (rank == 2)
      state["more"] = ShardedTensor::whole("more", Tensor::zeros(DType::kFloat32, {5}));
    return state;
  });
  EXPECT_FALSE(more.hit);
  EXPECT_NE(open_checkpoint(directory_ / "second")->metadata().find_tensor("more"), nullptr);
}

TEST_F(WarmPlanCache, PlansOfAnotherNumberOfRanksAreNotTaken) {
  save_first({.planner = {.keep_plans = KeepPlans::kFile}});
  run_ranks(1, [&](Communicator& comm) {
    SavePlanCache cache;
    EXPECT_FALSE(warm_plan_cache(cache, directory_ / "first", comm));
    StateDict state;
    state["iteration"] = 7;
    EXPECT_EQ(save(state, directory_ / "second", {}, comm, cache).why_planned,
              "the checkpoint keeps the plans of 3 ranks, and this job has 1");
  });
}

TEST_F(WarmPlanCache, PlansAreKeptOnRequestOnly) {
  save_first({});
  EXPECT_FALSE(fs::exists(file()));
  const Outcome outcome = resume({}, [](int rank) { return state_of(rank); });
  EXPECT_FALSE(outcome.warm);
  EXPECT_FALSE(outcome.hit);
  EXPECT_EQ(outcome.why_planned, "the checkpoint keeps no plans");
}

TEST_F(WarmPlanCache, AfterKeysWereRemovedAJobThatStillHasThemSavesThem) {
  const SaveOptions options{.planner = {.keep_plans = KeepPlans::kFile}};
  save_first(options);
  remove_sharded_tensors(directory_ / "first", "optimizer");
  resume(options, [](int rank) { return state_of(rank); });
  EXPECT_NE(open_checkpoint(directory_ / "second")->metadata().find_tensor("optimizer.w"), nullptr);
}

TEST_F(WarmPlanCache, TheFileIsSmallAndTheMetadataStayAsTheyAre) {
  save_first({});
  const auto metadata = [&] { return fs::file_size(directory_ / "first" / ".metadata"); };
  const std::uintmax_t before = metadata();
  EXPECT_FALSE(fs::exists(file()));
  save_first({.planner = {.keep_plans = KeepPlans::kFile}, .overwrite = true});
  EXPECT_EQ(metadata(), before);
  EXPECT_LT(fs::file_size(file()), before / 5);
}

TEST_F(WarmPlanCache, TheSecondResumeIsAsTheFirst) {
  const SaveOptions options{.planner = {.keep_plans = KeepPlans::kFile}};
  save_first(options);
  run_ranks(kRanks, [&](Communicator& comm) {
    SavePlanCache cache;
    fs::path last = directory_ / "first";
    for (const char* next : {"second", "third"}) {
      EXPECT_TRUE(warm_plan_cache(cache, last, comm));
      last = directory_ / next;
      EXPECT_TRUE(save(state_of(comm.rank()), last, options, comm, cache).plan_cached);
      EXPECT_TRUE(
          save(state_of(comm.rank()), last.string() + "b", options, comm, cache).plan_cached);
    }
  });
  EXPECT_EQ(open_checkpoint(directory_ / "thirdb")->metadata().tensors.size(), 2U);
}

TEST_F(WarmPlanCache, OtherOptionsOfTheNewJobDecide) {
  save_first({.planner = {.keep_plans = KeepPlans::kFile}});
  const auto state = [](int rank) { return state_of(rank); };
  const Outcome other =
      resume({.planner = {.keep_plans = KeepPlans::kFile}, .parallel = {.enabled = true}}, state);
  EXPECT_FALSE(other.hit);
  EXPECT_EQ(other.why_planned, "rank 0: other planner options");
  const Outcome off = resume({}, state, "third");
  EXPECT_TRUE(off.hit) << "what a save keeps does not change what it reuses";
  EXPECT_FALSE(fs::exists(directory_ / "third" / kPlanFile));
}

TEST_F(WarmPlanCache, ADamagedFileOfPlansIsAColdStart) {
  const SaveOptions options{.planner = {.keep_plans = KeepPlans::kFile}, .overwrite = true};
  save_first(options);
  const auto state = [](int rank) { return state_of(rank); };
  const std::uintmax_t size = fs::file_size(file());
  std::fstream(file(), std::ios::in | std::ios::out | std::ios::binary).seekp(40).put('?');
  const Outcome garbled = resume(options, state);
  EXPECT_FALSE(garbled.warm);
  EXPECT_FALSE(garbled.hit);
  EXPECT_THAT(garbled.why_planned, HasSubstr("do not have its checksum"));
  for (const std::uintmax_t left : {size - 1, size / 2, std::uintmax_t{5}, std::uintmax_t{0}}) {
    fs::resize_file(file(), left);
    const Outcome outcome = resume(options, state);
    EXPECT_FALSE(outcome.warm);
    EXPECT_THAT(outcome.why_planned, HasSubstr("dckpt_plans.bin cannot be used"));
  }
  fs::remove(file());
  fs::create_directory(file());
  EXPECT_FALSE(resume(options, state).warm);
}

TEST_F(WarmPlanCache, AFileOfAnotherCheckpointIsAColdStart) {
  const SaveOptions options{.planner = {.keep_plans = KeepPlans::kFile}};
  save_first(options);
  run_ranks(kRanks, [&](Communicator& comm) {
    StateDict state = state_of(comm.rank());
    state["optimizer"] = 8;
    save(state, directory_ / "other", options, comm);
  });
  fs::copy_file(directory_ / "other" / kPlanFile, file(), fs::copy_options::overwrite_existing);
  const Outcome outcome = resume(options, [](int rank) { return state_of(rank); });
  EXPECT_FALSE(outcome.warm);
  EXPECT_THAT(outcome.why_planned, HasSubstr("belongs to other contents"));
}

TEST_F(WarmPlanCache, ACheckpointThatIsNotThereFailsOnEveryRank) {
  run_ranks(2, [&](Communicator& comm) {
    SavePlanCache cache;
    EXPECT_EQ(code_of([&] { warm_plan_cache(cache, directory_ / "none", comm); }), "io");
  });
}

}  // namespace
}  // namespace dckpt::warm_plan_cache_test
