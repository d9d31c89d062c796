#include "dist_checkpointing/planner/load_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <set>

#include "configs/policy/policy.h"
#include "conformance/planner_conformance.h"
#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "dist_checkpointing/load/load_async.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "mapping/state/sharded_tree.h"
#include "tests/dist_checkpointing/planner/load_planners.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::load_planner_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST_F(LoadPlanners, DequantizeWhatAPlannerHasQuantizedInAnySharding) {
  const Policy policy = with("planner: {kind: int8_weights}", "planner: {kind: int8_weights}");
  save_state(policy.save);
  EXPECT_EQ(load_plain_tensors(checkpoint(), with("", "planner: {kind: stored}").load)
                .at("decoder.w")
                .as_tensor()
                .dtype(),
            DType::kInt8);
  for (const int ranks : {4, 1, 3}) {
    for (const bool parallel : {false, true}) {
      LoadOptions options = policy.load;
      options.parallel.enabled = parallel;
      load_on(ranks, options, [&](int rank, const StateDict& state) {
        EXPECT_EQ(plain_state(state), plain_state(state_of(rank, ranks, 1)))
            << ranks << (parallel ? " together" : "");
      });
    }
  }
}

TEST_F(LoadPlanners, FillMemoryThatTheStateHasAndMakeWhatItLacks) {
  const Policy policy = with("planner: {kind: int8_weights}", "planner: {kind: int8_weights}");
  save_state(policy.save);
  StateDict state = state_of(0, 1, 0);
  const Tensor before = *state.at("w").as_sharded_tensor().data;
  state["norm"].mutable_sharded_tensor().data.reset();
  // Columns of a wider tensor have strides.
  const Tensor wide = Tensor::zeros(DType::kFloat32, {13, 9});
  state["w"].mutable_sharded_tensor().data = wide.narrow(1, 2, 4);
  load(state, checkpoint(), policy.load);
  EXPECT_TRUE(equal(state.at("w").as_sharded_tensor().data->contiguous(), part(13, 0)));
  EXPECT_TRUE(equal(wide.narrow(1, 2, 4).contiguous(), part(13, 0)));
  EXPECT_TRUE(equal(*state.at("norm").as_sharded_tensor().data, part(2, 0)));
  EXPECT_EQ(before.data<float>()[1], 0) << "no longer the state's";
}

TEST_F(LoadPlanners, SplitAJoinedTensor) {
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = Value::dict();
    state["qkv"] = rows_of("layer.qkv.weight", 12, comm.rank(), 2, 1);
    save(state, checkpoint(), {}, comm);
  });
  const LoadOptions options = with("", "planner: {kind: qkv}").load;
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [&](Communicator& comm) {
      StateDict state = Value::dict();
      for (const char* const name : {"q", "k", "v"})
        state[name] = rows_of(std::string("layer.") + name + ".weight", 4, comm.rank(), ranks, 0);
      load(state, checkpoint(), options, comm);
      std::int64_t first = 0;
      for (const char* const name : {"q", "k", "v"}) {
        const ShardedTensor& loaded = state.at(name).as_sharded_tensor();
        EXPECT_EQ(loaded.key, std::string("layer.") + name + ".weight") << "as it was described";
        EXPECT_EQ(loaded.global_shape, Shape({4, 4}));
        EXPECT_TRUE(
            equal(*loaded.data, part(loaded.local_shape[0], first + loaded.global_offset[0])));
        first += 4;
      }
    });
  }
}

TEST_F(LoadPlanners, ARunThatResumesWithOtherKeysSavesUnderThem) {
  const auto root = directory_.path() / "run";
  const auto own_state = [](bool joined) {
    StateDict state = Value::dict();
    state["other"] = rows_of("other", 4, 0, 1, 1);
    if (joined) {
      state["qkv"] = rows_of("layer.qkv.weight", 12, 0, 1, 1);
      return state;
    }
    for (const char* const name : {"q", "k", "v"})
      state[name] = rows_of(std::string("layer.") + name + ".weight", 4, 0, 1, 0);
    return state;
  };
  const auto alone = single_rank();
  Checkpointer(root, {}, *alone).save(own_state(true), 1).wait();
  const Policy policy = with("", "planner: {kind: qkv}");
  Checkpointer resumed(root, policy, *alone);
  StateDict state = own_state(false);
  ASSERT_TRUE(resumed.load_latest(state));
  resumed.save(state, 2).wait();
  EXPECT_TRUE(equal(load_plain_tensors(root / "iter_0000002").at("layer.k.weight").as_tensor(),
                    part(4, 4)));
}

TEST_F(LoadPlanners, LeaveOutWhatAnotherCheckpointHas) {
  save_on(kRanks, [](int rank) {
    const StateDict all = state_of(rank, kRanks, 1);
    StateDict state = Value::dict();
    for (const char* const name : {"w", "m", "rng", "step"}) state[name] = all.at(name);
    return state;
  });
  EXPECT_THAT(error_of([&] { load_on(2, {}, [](int, const StateDict&) {}); }),
              HasSubstr("decoder.norm"));
  const LoadOptions options =
      with("", "planner: {kind: without, options: {keys: [decoder.norm]}}").load;
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = state_of(comm.rank(), 2, 0);
    state["norm"].mutable_sharded_tensor().data = part(2, 5);
    const LoadReport report = load(state, checkpoint(), options, comm);
    EXPECT_THAT(report.left_out, ElementsAre("decoder.norm"));
    EXPECT_TRUE(equal(*state.at("norm").as_sharded_tensor().data, part(2, 5)));
    EXPECT_TRUE(equal(*state.at("w").as_sharded_tensor().data,
                      *state_of(comm.rank(), 2, 1).at("w").as_sharded_tensor().data));
  });
}

TEST_F(LoadPlanners, PlanPlainDcpDirectoriesToo) {
  StateDict saved = Value::dict();
  saved["model"]["q.weight"] = part(2, 0);
  saved["model"]["qkv.weight"] = part(6, 1);
  saved["step"] = 3;
  save(saved, checkpoint(), {.compat = Compat::kDcp});
  StateDict state = Value::dict();
  for (const char* const name : {"q.weight", "k.weight", "v.weight"})
    state["model"][name] = part(2, 0, 0);
  state["step"] = 0;
  load(state, checkpoint(), with("", "planner: {kind: qkv}").load);
  EXPECT_TRUE(equal(state.at("model").at("q.weight").as_tensor(), part(2, 1)))
      << "what a planner names goes before what the checkpoint has";
  EXPECT_EQ(state.at("step"), Value(3));
}

TEST_F(LoadPlanners, ThoseOfTheExampleConform) {
  for (const auto& [save, load] : std::vector<std::pair<std::string, std::string>>{
           {"int8_weights", "int8_weights"},
           {"mcore", "qkv"},
           {"mcore", "without, options: {keys: [decoder.norm]}"}}) {
    const Policy policy = with("planner: {kind: " + save + "}", "planner: {kind: " + load + "}");
    EXPECT_THAT(check_load_planner(policy, checkpoint(save + load.substr(0, 5))).problems,
                IsEmpty())
        << load;
  }
}

/// Loads something that depends on the loading rank.
class Selfish final : public MCoreLoadPlanner {
 public:
  void set_up_planner(const LoadSetup& setup) override {
    MCoreLoadPlanner::set_up_planner(setup);
    ranks_ = setup.ranks;
  }
  bool resolves(const LoadItem& item) const override {
    return item.tensor.dtype == DType::kFloat32;
  }
  Tensor commit_tensor(const LoadItem&, Tensor read) const override {
    if (read.numel() > 0) read.data<float>()[0] += static_cast<float>(ranks_);
    return read;
  }

 private:
  int ranks_ = 1;
};

TEST_F(LoadPlanners, ThatLoadSomethingElseOnOtherRanksDoNotConform) {
  register_planner(LoadPlannerEntry{
      .name = "selfish", .make = [](const StrategySpec&) { return std::make_unique<Selfish>(); }});
  EXPECT_THAT(check_load_planner(with("", "planner: {kind: selfish}"), checkpoint()).problems,
              Contains(HasSubstr("every load gives the same")));
  EXPECT_THAT(error_of([&] { check_load_planner(with("", ""), checkpoint()); }),
              HasSubstr("names no planner"));
}

/// Leaves out a tensor if there are four ranks.
class Forgetful final : public MCoreLoadPlanner {
 public:
  LoadPlan create_local_plan() override {
    LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    if (setup().ranks == 4)
      std::erase_if(plan, [](const LoadItem& item) { return item.tensor.key == "decoder.weight"; });
    return plan;
  }
};

/// Leaves out what is not stored.
class Lenient final : public MCoreLoadPlanner {
 public:
  LoadPlan create_local_plan() override {
    LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    std::erase_if(plan, [&](const LoadItem& item) {
      return setup().metadata.find_tensor(item.tensor.key) == nullptr;
    });
    return plan;
  }
};

/// Uses its setup when its time is over.
class LateSetup final : public MCoreLoadPlanner {
 public:
  LoadPlan finish_plan(LoadPlan plan) override { return setup().ranks > 0 ? plan : LoadPlan(); }
};

TEST_F(LoadPlanners, ThatForgetDoNotConformAndThoseThatSupplyDo) {
  const auto problems_of = [&](const std::string& name) {
    return check_load_planner(with("", "planner: {kind: " + name + "}"), checkpoint(name)).problems;
  };
  register_planner(load_planner_entry<Forgetful>("forgetful", "forgets a tensor on four ranks"));
  register_planner(load_planner_entry<Lenient>("lenient", "leaves out what is not stored"));
  EXPECT_THAT(problems_of("forgetful"), Contains(HasSubstr("every load gives the same")));
  EXPECT_THAT(problems_of("lenient"), IsEmpty());
}

TEST_F(LoadPlanners, ASetupOutOfTimeIsAnError) {
  register_planner(load_planner_entry<LateSetup>("late_setup", "looks at its setup at the end"));
  save_state();
  EXPECT_THAT(error_of([&] {
                load_on(2, with("", "planner: {kind: late_setup}").load,
                        [](int, const StateDict&) {});
              }),
              AllOf(HasSubstr("planner 'late_setup'"),
                    HasSubstr("setup() is called before set_up_planner(), or after")));
}

TEST_F(LoadPlanners, AreNamedByPolicies) {
  const LoadOptions options = with("", "planner: {kind: int8_weights}").load;
  const std::string text = to_yaml(Policy{.load = options});
  EXPECT_EQ(Policy::from_text(text).load, options) << text;
  const auto refusal = [&](const std::string& load) { return error_of([&] { with("", load); }); };
  EXPECT_THAT(refusal("planner: {kind: int8_weigths}"), HasSubstr("int8_weights"));
  EXPECT_THAT(refusal("planner: {options: {steps: 8}}"), HasSubstr("'kind' is missing"));
  save_state();
  EXPECT_THAT(error_of([&] {
                load_on(2, with("", "planner: {kind: int8_weights, options: {step: 8}}").load,
                        [](int, const StateDict&) {});
              }),
              AllOf(HasSubstr("'int8_weights' has no options"), HasSubstr("step")));
  LoadOptions unknown;
  unknown.registered_planner.name = "int8";
  EXPECT_THAT(error_of([&] { load_on(1, unknown, [](int, const StateDict&) {}); }),
              HasSubstr("no planner 'int8'"));
}

// ---- Objects.

class OneMore final : public MCoreLoadPlanner {
 public:
  Value load_bytes(const std::string& key, Value stored) const override {
    EXPECT_THAT(key, HasSubstr("rng/shard_"));
    return stored.as_int() + 1;
  }
};

class NoObject final : public MCoreLoadPlanner {
 public:
  Value load_bytes(const std::string&, Value) const override {
    throw std::runtime_error("no object today");
  }
};

TEST_F(LoadPlanners, ThatThrowAreNamedWithTheKeyAndTheRank) {
  register_planner(load_planner_entry<NoObject>("no_object", "loads none"));
  save_state();
  for (const bool parallel : {false, true}) {
    LoadOptions options = with("", "planner: {kind: no_object}").load;
    options.parallel.enabled = parallel;
    EXPECT_THAT(error_of([&] { load_on(2, options, [](int, const StateDict&) {}); }),
                AllOf(HasSubstr("planner 'no_object': unexpected error: no object today"),
                      HasSubstr("key 'rng/shard_0_1'"), HasSubstr("rank 0")));
  }
}

TEST_F(LoadPlanners, MakeObjectsOfStoredOnes) {
  register_planner(LoadPlannerEntry{
      .name = "one_more", .make = [](const StrategySpec&) { return std::make_unique<OneMore>(); }});
  save_state();
  for (const bool parallel : {false, true}) {
    LoadOptions options = with("", "planner: {kind: one_more}").load;
    options.parallel.enabled = parallel;
    load_on(kRanks, options, [&](int, const StateDict& state) {
      EXPECT_EQ(state.at("rng").as_sharded_object().data, Value(8));
      EXPECT_EQ(state.at("step"), Value(5)) << "common state";
    });
  }
}

// ---- Plans of all ranks.

/// Makes rank 0 leave out, on all ranks, what any rank leaves out.
class Together final : public PlannerOfRank {
 public:
  LoadPlan create_local_plan() override {
    LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    if (rank_ == 2)
      std::erase_if(plan, [](const LoadItem& item) { return item.tensor.key == "decoder.norm"; });
    return plan;
  }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override {
    EXPECT_EQ(rank_, 0);
    std::set<std::string> common{"decoder.norm", "decoder.w", "optimizer.m"};
    for (const LoadPlan& plan : plans) {
      std::erase_if(common, [&](const std::string& key) {
        return std::ranges::none_of(plan,
                                    [&](const LoadItem& item) { return item.tensor.key == key; });
      });
    }
    for (LoadPlan& plan : plans)
      std::erase_if(plan, [&](const LoadItem& item) { return !common.contains(item.tensor.key); });
    return plans;
  }
};

TEST_F(LoadPlanners, DecideOnRank0ForAll) {
  register_planner(load_planner_entry<Together>("together", "loads what all ranks want"));
  save_state();
  const LoadOptions options = with("", "planner: {kind: together}").load;
  run_ranks(kRanks, [&](Communicator& comm) {
    StateDict state = state_of(comm.rank(), kRanks, 0);
    const LoadReport report = load(state, checkpoint(), options, comm);
    EXPECT_THAT(report.left_out, ElementsAre("decoder.norm")) << comm.rank();
    const StateDict saved = state_of(comm.rank(), kRanks, 1);
    EXPECT_TRUE(
        equal(*state.at("w").as_sharded_tensor().data, *saved.at("w").as_sharded_tensor().data));
    EXPECT_EQ(state.at("norm").as_sharded_tensor().data->data<float>()[1], 0);
  });
}

TEST(LoadPlannerEntries, BringPlansTogetherForThoseThatWantThem) {
  EXPECT_TRUE(load_planner_entry<Together>("together", "").plans_globally);
  EXPECT_FALSE(load_planner_entry<OneMore>("one_more", "").plans_globally);
}

TEST_F(LoadPlanners, FillMemoryOfItsOwnOnly) {
  const Policy policy = with("planner: {kind: int8_weights}", "planner: {kind: int8_weights}");
  const Tensor memory = Tensor::zeros(DType::kFloat32, {3, 4});
  const auto whole = [](const char* key, const Tensor& data) {
    return Value(ShardedTensor::whole(key, data));
  };
  save(Value::dict(
           {{"optimizer.x", whole("optimizer.x", part(2, 0))}, {"w", whole("w", part(2, 1))}}),
       checkpoint(), policy.save);
  const auto refusal = [&](const Tensor& x, const Tensor& w) {
    StateDict state = Value::dict({{"optimizer.x", whole("optimizer.x", x)}, {"w", whole("w", w)}});
    return testing::error_of([&] { load(state, checkpoint(), policy.load); }).message();
  };
  const Tensor first = memory.narrow(0, 0, 2), last = memory.narrow(0, 1, 2);
  EXPECT_THAT(refusal(first, first), HasSubstr("a planner fills tensors by itself"));
  EXPECT_THAT(refusal(first, last), HasSubstr("a planner fills tensors by itself"));
  StateDict apart = Value::dict({{"w", whole("w", first)}});
  load(apart, checkpoint(), policy.load);
  EXPECT_TRUE(equal(first, part(2, 1)));
  const Tensor wide = Tensor::zeros(DType::kFloat32, {2, 8});
  const Tensor left = wide.narrow(1, 0, 4), right = wide.narrow(1, 4, 4);
  StateDict columns =
      Value::dict({{"optimizer.x", whole("optimizer.x", left)}, {"w", whole("w", right)}});
  load(columns, checkpoint(), policy.load);
  EXPECT_TRUE(equal(left.contiguous(), part(2, 0)));
  EXPECT_TRUE(equal(right.contiguous(), part(2, 1)));
}

TEST_F(LoadPlanners, RenameKeysThemselves) {
  Policy policy = with("", "planner: {kind: qkv}");
  save_state();
  policy.load.rename = {{.from = "^w$", .to = "model.w"}};
  StateDict state = state_of(0, 1, 0);
  EXPECT_THAT(testing::error_of([&] { load(state, checkpoint(), policy.load); }).what(),
              HasSubstr("leave out load.rename"));
}

// ---- Tensors that are reported as they arrive.

TEST_F(LoadPlanners, TensorsAreToldOnceTheyAreComplete) {
  const Policy policy = with("planner: {kind: int8_weights}", "planner: {kind: int8_weights}");
  save_state(policy.save);
  for (const bool parallel : {false, true}) {
    LoadOptions options = policy.load;
    options.parallel.enabled = parallel;
    run_ranks(kRanks, [&](Communicator& comm) {
      std::vector<std::string> told;
      const StateDict expected = state_of(comm.rank(), kRanks, 1);
      LoadHooks hooks;
      hooks.tensor_ready = [&](const std::string& key, const Tensor& tensor) {
        told.push_back(key);
        const std::string name = key.substr(key.find('.') + 1);
        EXPECT_TRUE(equal(tensor, *expected.at(name).as_sharded_tensor().data)) << key;
      };
      StateDict state = state_of(comm.rank(), kRanks, 0);
      load(state, checkpoint(), options, comm, hooks);
      EXPECT_THAT(told, UnorderedElementsAre("decoder.w", "optimizer.m", "decoder.norm"));
    });
  }
}

TEST_F(LoadPlanners, ATensorIsToldBeforeOthersAreRead) {
  // One thread reads many tensors: the first is reported before the last has been read.
  StateDict saved = Value::dict();
  for (int i = 0; i < 40; ++i) {
    const std::string key = "t" + std::to_string(i);
    saved[key] = ShardedTensor::whole(key, part(1000, i));
  }
  save(saved, checkpoint());
  StateDict state = Value::dict();
  for (int i = 0; i < 40; ++i) {
    const std::string key = "t" + std::to_string(i);
    state[key] = ShardedTensor::whole(key, Tensor::zeros(DType::kFloat32, {1000, 4}));
  }
  const auto complete = [&] {
    return std::ranges::count_if(state.as_dict(), [](const auto& entry) {
      return entry.second.as_sharded_tensor().data->template data<float>()[3999] != 0;
    });
  };
  std::vector<std::ptrdiff_t> progress;
  LoadHooks hooks;
  hooks.tensor_ready = [&](const std::string&, const Tensor&) { progress.push_back(complete()); };
  const auto alone = single_rank();
  load(state, checkpoint(), {.threads = 1}, *alone, hooks);
  EXPECT_EQ(progress.size(), 40);
  EXPECT_EQ(progress.front(), 1);
  EXPECT_EQ(progress.back(), 40);
}

TEST_F(LoadPlanners, PaddedTensorsAreToldWithTheirPadding) {
  save(Value::dict({{"w", ShardedTensor::whole("w", part(2, 1))}}), checkpoint());
  StateDict state = Value::dict();
  state["w"] = ShardedTensor::whole("w", part(4, 0, 0), {.allow_shape_mismatch = true});
  LoadHooks hooks;
  float last = 0;
  hooks.tensor_ready = [&](const std::string&, const Tensor& tensor) {
    last = tensor.data<float>()[15];
  };
  const auto alone = single_rank();
  load(state, checkpoint(), {.padding = Padding::kReplicate}, *alone, hooks);
  EXPECT_EQ(last, part(2, 1).data<float>()[7]);
}

TEST_F(LoadPlanners, AnErrorInTheHookIsTheLoads) {
  save_state();
  LoadHooks hooks;
  hooks.tensor_ready = [](const std::string&, const Tensor&) {
    throw std::runtime_error("no memory for graphs");
  };
  EXPECT_THAT(error_of([&] {
                load_on(
                    2, {}, [](int, const StateDict&) {}, hooks);
              }),
              AllOf(HasSubstr("LoadHooks::tensor_ready: "), HasSubstr("no memory for graphs"),
                    HasSubstr("key '"), HasSubstr("rank 0")));
}

}  // namespace
}  // namespace dckpt::testing::load_planner_test
