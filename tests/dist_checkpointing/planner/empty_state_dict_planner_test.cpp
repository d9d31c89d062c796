#include "dist_checkpointing/load/empty_state_dict_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist_checkpointing/planner/planner_registry.h"
#include "mapping/state/sharded_tree.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::testing::empty_state_dict_planner_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Keys chosen by the test.
std::vector<std::string> chosen_keys;

class Chosen final : public EmptyStateDictLoadPlanner {
 public:
  Chosen() : EmptyStateDictLoadPlanner(chosen_keys) {}
};

class EmptyStateDict : public SaveLoad {
 protected:
  static void SetUpTestSuite() {
    register_planner(load_planner_entry<Chosen>("empty_state_dict", "all that is stored"));
  }
  void SetUp() override { chosen_keys.clear(); }
  static LoadOptions by_planner() {
    LoadOptions options;
    options.registered_planner.name = "empty_state_dict";
    return options;
  }
  StateDict loaded() {
    StateDict state;
    load(state, checkpoint(), by_planner());
    return state;
  }
};

TEST_F(EmptyStateDict, IsGivenAPlainDcpDirectoryAsItWasNested) {
  StateDict saved = Value::dict();
  saved["model"]["w"] = arange({3, 2});
  saved["optimizer"]["groups"] = Value::list({Value::dict({{"lr", 0.5}})});
  saved["step"] = 7;
  save(saved, checkpoint(), {.compat = Compat::kDcp});
  EXPECT_EQ(plain_state(loaded()), load_state_dict(checkpoint()));
  EXPECT_EQ(plain_state(loaded()), saved);
  chosen_keys = {"model"};
  EXPECT_EQ(plain_state(loaded()), Value::dict({{"model", saved.at("model")}}));
}

TEST_F(EmptyStateDict, IsGivenWhatMegatronShardsAndSavesItAgain) {
  save_on(2, [](int rank) {
    StateDict state = Value::dict();
    state["w"] = ShardedTensor::from_box("decoder.w", arange({2, 3}), {4, 3}, {2 * rank, 0});
    state["rng"] = ShardedObject{.key = "rng",
                                 .data = Value(rank),
                                 .global_shape = {2},
                                 .global_offset = {rank},
                                 .has_data = true};
    state["iteration"] = 5;
    return state;
  });
  run_ranks(2, [&](Communicator& comm) {
    StateDict state;
    load(state, checkpoint(), by_planner(), comm);
    EXPECT_EQ(state.at("decoder.w").as_sharded_tensor().global_shape, Shape({4, 3}));
    StateDict all = load_state_dict(checkpoint(), {}, {}, comm);
    all["iteration"] = 5;
    EXPECT_EQ(plain_state(state), all);
  });
  StateDict state = loaded();
  save(state, checkpoint("again"));
  EXPECT_EQ(load_state_dict(checkpoint("again")), load_state_dict(checkpoint()));
}

TEST_F(EmptyStateDict, ErrorsSayWhatToDo) {
  save(Value::dict({{"w", ShardedTensor::whole("w", arange({2}))}}), checkpoint());
  chosen_keys = {"v"};
  EXPECT_THAT(error_of([&] { loaded(); }),
              AllOf(HasSubstr("planner 'empty_state_dict'"), HasSubstr("'v'"), HasSubstr("'w'")));
  chosen_keys.clear();
  StateDict state = Value::dict({{"v", ShardedTensor::whole("v", arange({2}))}});
  EXPECT_THAT(error_of([&] { load(state, checkpoint(), by_planner()); }),
              HasSubstr("for an empty state dict"));
  EXPECT_TRUE(state.contains("v")) << "as it was";
}

TEST_F(EmptyStateDict, ALoadThatFailsLeavesItEmptyForTheNext) {
  save(Value::dict({{"w", ShardedTensor::whole("w", arange({2}))}}), checkpoint());
  const auto stored = checkpoint() / "__0_0.distcp";
  ASSERT_TRUE(std::filesystem::exists(stored));
  std::filesystem::rename(stored, checkpoint() / "away");
  StateDict state;
  EXPECT_THAT(error_of([&] { load(state, checkpoint(), by_planner()); }),
              HasSubstr("__0_0.distcp"));
  EXPECT_EQ(state.size(), 0U);
  std::filesystem::rename(checkpoint() / "away", stored);
  load(state, checkpoint(), by_planner());
  EXPECT_TRUE(state.contains("w"));
}

}  // namespace
}  // namespace dckpt::testing::empty_state_dict_planner_test
