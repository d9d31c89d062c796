#include "dist_checkpointing/load/object_choice.h"

#include <gmock/gmock.h>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/log.h"
#include "strategies/comm/threads.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::object_choice_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::array kStrictModes{StrictHandling::kAssumeOkUnexpected,
                                  StrictHandling::kLogUnexpected,
                                  StrictHandling::kLogAll,
                                  StrictHandling::kRaiseUnexpected,
                                  StrictHandling::kRaiseAll,
                                  StrictHandling::kReturnUnexpected,
                                  StrictHandling::kReturnAll,
                                  StrictHandling::kIgnoreAll};

/// Returns the value of a leaf of any kind.
Value value_of(const Value& leaf) {
  return leaf.is(Value::Kind::kShardedObject) ? leaf.as_sharded_object().data : leaf;
}

class ObjectChoice : public ::testing::Test {
 protected:
  ObjectChoice() {
    set_log_sink([this](LogLevel level, std::string_view message) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(message);
    });
  }
  ~ObjectChoice() override { set_log_sink({}); }

  /// Returns the value of each rank under these keys: its rank, with a sign for this run.
  static StateDict state_of(Communicator& comm, const std::vector<std::string>& keys, int sign) {
    StateDict state;
    state["w"] = ShardedTensor::from_rank_offsets(
        "w", arange({4}).narrow(0, 4 / comm.size() * comm.rank(), 4 / comm.size()),
        {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
    for (const std::string& key : keys) {
      state[key] = ShardedObject{.key = key,
                                 .data = Value(sign * (comm.rank() + 1)),
                                 .global_shape = {comm.size()},
                                 .global_offset = {comm.rank()}};
    }
    return state;
  }

  void save_as(int ranks, const std::vector<std::string>& keys, Compat compat = Compat::kMegatron) {
    run_ranks(ranks, [&](Communicator& comm) {
      save(state_of(comm, keys, 1), path(), {.compat = compat}, comm);
    });
  }

  std::filesystem::path path() const { return directory_.path() / "checkpoint"; }

  TempDir directory_;
  std::vector<std::string> warnings_;
};

TEST_F(ObjectChoice, AUsualMegatronStateResumesUnderAnotherLayoutInEveryStrictMode) {
  const std::vector<std::string> keys = {"rng_state", "rerun_state_machine_state",
                                         "decoder.layers.mlp.linear_fc1._extra_state"};
  save_as(2, keys);
  for (const StrictHandling strict : kStrictModes) {
    warnings_.clear();
    run_ranks(4, [&](Communicator& comm) {
      StateDict state = state_of(comm, keys, -1);
      const LoadReport report = load(state, path(), {.strict = strict}, comm);
      EXPECT_EQ(value_of(state["rng_state"]), Value(-comm.rank() - 1)) << "this run's";
      ASSERT_EQ(report.resharded_objects.size(), 3U);
      EXPECT_EQ(report.resharded_objects[0].key,
                "rng_state/shard_" + std::to_string(comm.rank()) + "_4");
      EXPECT_EQ(report.resharded_objects[0].done, WhenResharded::kKeep);
      EXPECT_THAT(report.missing, IsEmpty());
    });
    EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("load.objects"), HasSubstr("'rng_state'"),
                                             HasSubstr("keep the values of this run"))));
  }
}

TEST_F(ObjectChoice, AllOldCellsAreGatheredWhereTheGridIsAnother) {
  for (const Compat compat : {Compat::kMegatron, Compat::kDcp}) {
    std::filesystem::remove_all(path());
    save_as(3, {"dataloader"}, compat);
    const LoadOptions options{.allow_unloaded = {"w"},
                              .objects = {{"data*", WhenResharded::kGather}}};
    run_ranks(2, [&](Communicator& comm) {
      StateDict state = state_of(comm, {"dataloader"}, -1);
      state.mutable_dict().erase("w");
      const LoadReport report = load(state, path(), options, comm);
      EXPECT_EQ(value_of(state["dataloader"]), Value::list({1, 2, 3}));
      ASSERT_EQ(report.resharded_objects.size(), 1U);
      EXPECT_EQ(report.resharded_objects[0].done, WhenResharded::kGather);
    });
    run_ranks(3, [&](Communicator& comm) {
      StateDict state = state_of(comm, {"dataloader"}, -1);
      load(state, path(), options, comm);
      EXPECT_EQ(value_of(state["dataloader"]), Value(comm.rank() + 1)) << "the same grid";
    });
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(ObjectChoice, CellsAreLoadedWithoutAStateDict) {
  save_as(2, {"dataloader"});
  const std::vector<ShardedObject> cells = load_objects(path(), "dataloader");
  ASSERT_EQ(cells.size(), 2U);
  EXPECT_EQ(cells[1].data, Value(2));
  EXPECT_TRUE(equal(cells[1].global_offset, Shape{1}));
  EXPECT_THAT(testing::error_of([&] { (void)load_objects(path(), "dataloadr"); }).what(),
              HasSubstr("did you mean 'dataloader'?"));
  EXPECT_THAT(testing::error_of([&] { (void)load_objects(path(), "w"); }).what(),
              HasSubstr("a tensor"));
}

TEST_F(ObjectChoice, TheSameLayoutLoadsThem) {
  save_as(2, {"rng_state"});
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = state_of(comm, {"rng_state"}, -1);
    EXPECT_THAT(load(state, path(), {}, comm).resharded_objects, IsEmpty());
    EXPECT_EQ(value_of(state["rng_state"]), Value(comm.rank() + 1));
  });
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(ObjectChoice, RulesDecideWhatBecomesOfTheLeaf) {
  for (const Compat compat : {Compat::kMegatron, Compat::kDcp}) {
    const auto resharded = directory_.path() / std::string(to_string(compat));
    run_ranks(2, [&](Communicator& comm) {
      save(state_of(comm, {"a", "b", "c"}, 1), resharded, {.compat = compat}, comm);
    });
    StateDict state;
    for (const char* const key : {"a", "b", "c"})
      state[key] = ShardedObject{.key = key, .data = Value(7)};
    const LoadOptions options{.objects = {{"a", WhenResharded::kKeep},
                                          {"b", WhenResharded::kReinit},
                                          {"[a-c]", WhenResharded::kDrop}}};
    EXPECT_EQ(load(state, resharded, options).resharded_objects.size(), 3U);
    EXPECT_EQ(value_of(state["a"]), Value(7));
    EXPECT_EQ(value_of(state["b"]), Value());
    EXPECT_FALSE(state.contains("c"));
  }
}

TEST_F(ObjectChoice, OtherObjectsAreAnErrorThatNamesTheOption) {
  save_as(2, {"dataloader"});
  for (const StrictHandling strict : kStrictModes) {
    run_ranks(4, [&](Communicator& comm) {
      StateDict state = state_of(comm, {"dataloader"}, -1);
      EXPECT_THAT(
          testing::error_of([&] { load(state, path(), {.strict = strict}, comm); }).message(),
          AllOf(HasSubstr("objects in a grid of (4,) are asked for, but the checkpoint has one of "
                          "(2,) for key 'dataloader'"),
                HasSubstr("load.objects"), HasSubstr("on all 4 ranks")));
    });
  }
}

TEST_F(ObjectChoice, AKeyWithoutObjectsIsAMatterOfTheStrictMode) {
  save_as(2, {});
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = state_of(comm, {"rng_state"}, -1);
    EXPECT_THAT(testing::error_of([&] { load(state, path(), {}, comm); }).message(),
                HasSubstr("keys are asked for that the checkpoint does not have"));
    EXPECT_THAT(load(state, path(), {.strict = StrictHandling::kReturnUnexpected}, comm).unexpected,
                ElementsAre("rng_state"));
  });
}

TEST_F(ObjectChoice, AStateThatAsksForNothingLoadsTheCommonStateAndAWarningSaysWhatLoadsMore) {
  save_as(2, {});
  run_ranks(2, [&](Communicator& comm) {
    StateDict state;
    load(state, path(), {}, comm);
    EXPECT_FALSE(state.contains("w"));
  });
  EXPECT_THAT(warnings_,
              ElementsAre(AllOf(HasSubstr("none of the checkpoint's 1 tensor;"),
                                HasSubstr("load_state_dict()"), HasSubstr("load_plain_tensors()"),
                                HasSubstr("load_sharded_metadata()"))));
}

TEST_F(ObjectChoice, AnEmptyStateLoadsNothingOfAPlainDcpDirectoryAndAWarningSaysSo) {
  save(Value::dict({{"w", Tensor::zeros(DType::kFloat32, {4})}}), path(), {.compat = Compat::kDcp});
  run_ranks(2, [&](Communicator& comm) {
    StateDict state;
    load(state, path(), {}, comm);
    EXPECT_FALSE(state.contains("w"));
  });
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("nothing is loaded"),
                                           HasSubstr("none of the checkpoint's 1 tensor;"))));
}

}  // namespace
}  // namespace dckpt::object_choice_test
