// Planners for saves that are wrong in one step: each is refused on all ranks, and nothing is
// saved.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <set>

#include "configs/policy/policy.h"
#include "conformance/planner_conformance.h"
#include "dist_checkpointing/load/select_keys.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/save/key_paths.h"
#include "dist_checkpointing/save/save_async.h"
#include "examples/planners/planners.h"
#include "operations/inspect/diff.h"
#include "strategies/contract/common_state.h"
#include "tests/dist_checkpointing/planner/save_planners.h"
#include "tests/support/code_of.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::wrong_save_planner_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

/// The built-in planner, except for one step that a test replaces.
struct Defect {
  std::function<void(SavePlan&, int rank)> local{};
  std::function<void(GlobalPlan&)> global{};
  std::function<void(SavePlan&)> finish{};
  std::function<Tensor(const WriteItem&, Tensor)> resolve{};
};
Defect defect;

class Wrong final : public MCoreSavePlanner {
 public:
  SavePlan create_local_plan() override {
    SavePlan plan = MCoreSavePlanner::create_local_plan();
    if (defect.local) defect.local(plan, rank());
    return plan;
  }
  GlobalPlan create_global_plan(const LocalPlans& plans) override {
    GlobalPlan plan = MCoreSavePlanner::create_global_plan(plans);
    if (defect.global) defect.global(plan);
    return plan;
  }
  SavePlan finish_plan(SavePlan plan) override {
    if (defect.finish) defect.finish(plan);
    return plan;
  }
  bool resolves(const WriteItem& item) const override {
    return defect.resolve && item.kind == WriteItem::Kind::kTensor;
  }
  Tensor resolve_tensor(const WriteItem& item, Tensor data) const override {
    return defect.resolve(item, std::move(data));
  }
};

/// Overrides one step only: the others are not checked.
class WrongInPart final : public MCoreSavePlanner {
 public:
  SavePlan create_local_plan() override {
    SavePlan plan = MCoreSavePlanner::create_local_plan();
    if (defect.local) defect.local(plan, rank());
    return plan;
  }
};

class WrongPlanners : public Planners {
 protected:
  static void SetUpTestSuite() {
    register_planner(
        {.name = "wrong", .make = [](const StrategySpec&) { return std::make_unique<Wrong>(); }});
    register_planner({.name = "wrong_dcp",
                      .rules = PlannerKind::kDcp,
                      .make = [](const StrategySpec&) { return std::make_unique<Wrong>(); }});
    register_planner(
        save_planner_entry<WrongInPart>("wrong_in_part", "has a local plan of its own"));
  }
  void TearDown() override { defect = {}; }

  /// Returns the error of all ranks.
  std::string refusal(Defect with_defect, const std::string& planner = "wrong") {
    defect = std::move(with_defect);
    std::array<std::string, kRanks> errors;
    run_ranks(kRanks, [&](Communicator& comm) {
      errors[static_cast<std::size_t>(comm.rank())] = error_of(
          [&] { save(state_of(comm.rank()), checkpoint("refused"), with(planner), comm); });
    });
    for (const std::string& error : errors) EXPECT_NE(error, "no error");
    EXPECT_FALSE(std::filesystem::exists(checkpoint("refused")));
    return errors[0];
  }

  void expect_refused(std::function<void(SavePlan&, int rank)> local,
                      const ::testing::Matcher<std::string>& message) {
    for (const char* const planner : {"wrong", "wrong_in_part"}) {
      SCOPED_TRACE(planner);
      EXPECT_THAT(refusal({.local = local}, planner), message);
    }
  }
};

TEST_F(WrongPlanners, LocalPlansAreOfTheState) {
  expect_refused([](SavePlan& plan, int) { plan.front().source = 99; },
                 AllOf(HasSubstr("planner 'wrong"), HasSubstr("comes from tensor 99")));
  expect_refused([](SavePlan& plan, int) { plan.front().source_begin = 3; },
                 HasSubstr("from number 3 on"));
  expect_refused([](SavePlan& plan, int) { plan.push_back(plan.front()); },
                 HasSubstr("another item has taken"));
  expect_refused(
      [](SavePlan& plan, int) {
        plan.front().properties.dtype = DType::kBFloat16;
        plan.front().nbytes /= 2;
      },
      HasSubstr("resolves() must accept it"));
  expect_refused([](SavePlan& plan, int) { plan.front().chunk.sizes[0] = 99; },
                 HasSubstr("no part of the shape"));
  expect_refused([](SavePlan& plan, int) { plan.front().key = ""; }, HasSubstr("has no key"));
  expect_refused(
      [](SavePlan& plan, int rank) {
        if (rank == 2)
          std::erase_if(plan, [](const WriteItem& item) { return item.key == "decoder.w"; });
      },
      AllOf(HasSubstr("decoder.w"), HasSubstr("hole [8:12, 0:4]")));
  expect_refused(
      [](SavePlan& plan, int rank) {
        if (rank == 2) plan.front().chunk.offsets[0] -= 4;  // where rank 1's chunk is
      },
      HasSubstr("decoder.w"));
  expect_refused(
      [](SavePlan&, int rank) {
        if (rank == 3) throw std::runtime_error("out of ideas");
      },
      AllOf(HasSubstr("planner 'wrong"), HasSubstr("out of ideas"), HasSubstr("rank 3")));
}

TEST_F(WrongPlanners, TensorsAreStoredAsAWholeOrLeftOut) {
  expect_refused(
      [](SavePlan& plan, int) {
        for (WriteItem& item : plan) {
          if (item.key != "decoder.norm") continue;
          item.size = item.chunk.sizes = {1};
          item.nbytes = 4;
        }
      },
      HasSubstr("'decoder.norm' stores 1 of the tensor's"));
}

/// Returns objects in a grid and one of their own on rank 0, and replicas of a tensor.
StateDict with_objects(int rank) {
  StateDict state = Value::dict();
  for (const char* const key : {"rng", "data"})
    state[key] = ShardedObject{.key = key,
                               .data = Value(std::string(key) + std::to_string(rank)),
                               .global_shape = {Planners::kRanks},
                               .global_offset = {rank}};
  state["shared"] = ShardedObject{.key = "shared", .data = Value(7), .replica_id = rank};
  state["w"] = ShardedTensor::whole("w", arange({8}), {.replica_id = rank});
  state["step"] = 5;
  return state;
}

/// Returns the options of the wrong planner for a form.
SaveOptions wrong_in(const std::string& compat) {
  return {.compat = *parse_compat(compat),
          .planner = {.kind = compat == "dcp" ? PlannerKind::kDcp : PlannerKind::kMegatron},
          .registered_planner = {.name = compat == "dcp" ? "wrong_dcp" : "wrong"}};
}

WriteItem& item_of(SavePlan& plan, const std::string& key) {
  return *std::ranges::find(plan, key, &WriteItem::key);
}

TEST_F(WrongPlanners, ObjectsAreThoseOfTheState) {
  struct Case {
    std::string what;
    std::function<void(SavePlan&, int rank)> change;
    std::string message;
    bool plain_dcp_too = true;
  };
  const auto on_rank_1 = [](const std::function<void(SavePlan&)>& change) {
    return [change](SavePlan& plan, int rank) {
      if (rank == 1) change(plan);
    };
  };
  const std::string rng = "rng/shard_1_4";
  const std::string data = "data/shard_1_4";
  const std::vector<Case> cases{
      {"the bytes of another object", on_rank_1([&](SavePlan& plan) {
         std::swap(item_of(plan, rng).source, item_of(plan, data).source);
       }),
       "stores the object 'data/shard_1_4' under the key of another one"},
      {"bytes that do not exist",
       on_rank_1([&](SavePlan& plan) { item_of(plan, rng).source = 77; }), "comes from object 77"},
      {"an object for a tensor",
       [](SavePlan& plan, int) { item_of(plan, "w").kind = WriteItem::Kind::kObject; }, "'w' "},
      {"a tensor for an object",
       [&](SavePlan& plan, int rank) {
         if (rank == 1) item_of(plan, rng).kind = WriteItem::Kind::kTensor;
       },
       "'rng/shard_1_4' "},
      {"another cell", on_rank_1([&](SavePlan& plan) { item_of(plan, rng).chunk.offsets = {2}; }),
       "is the cell (2,) of a grid (4,), but the state's object 'rng/shard_1_4' is the cell (1,)"},
      {"another grid", on_rank_1([&](SavePlan& plan) { item_of(plan, rng).size = {5}; }),
       "of a grid (5,)"},
      {"the key of another cell",
       on_rank_1([&](SavePlan& plan) { item_of(plan, rng).key = "seeds/shard_2_4"; }),
       "a new key ends as the old one does"},
      {"a key without a cell", on_rank_1([&](SavePlan& plan) { item_of(plan, rng).key = "seeds"; }),
       "a new key ends as the old one does"},
      {"no main replica",
       on_rank_1([&](SavePlan& plan) { item_of(plan, rng).main_replica = false; }),
       "leave WriteItem::main_replica as it is"},
      {"an object twice", on_rank_1([&](SavePlan& plan) {
         WriteItem again = item_of(plan, rng);
         again.key = "seeds/shard_1_4";
         plan.push_back(again);
       }),
       "another item has taken"},
      {"an object that one rank leaves out", on_rank_1([&](SavePlan& plan) {
         std::erase_if(plan, [&](const WriteItem& item) { return item.key == rng; });
       }),
       "'rng': 1 of 4 objects"},
      {"an object that one rank renames",
       on_rank_1([&](SavePlan& plan) { item_of(plan, rng).key = "seeds/shard_1_4"; }), "'rng'"},
      {"a tensor under the key of an object",
       [&](SavePlan& plan, int) { item_of(plan, "w").key = "shared/shard_0_1"; },
       "under the key of an object"},
      {"the key of the common state",
       on_rank_1([&](SavePlan& plan) { item_of(plan, rng).key = kCommonStateKey; }),
       "only the common state has the key", false},
      {"another object as the common state",
       [&](SavePlan& plan, int rank) {
         if (rank == 0)
           item_of(plan, kCommonStateKey).source = item_of(plan, "rng/shard_0_4").source;
       },
       "only the common state has the key", false},
      {"an object for the common state in the finished plan",
       {},
       "only the sources of tensors",
       false},
  };
  for (const char* const compat : {"megatron-0.19", "dcp"}) {
    for (const Case& test : cases) {
      if (!test.plain_dcp_too && compat == std::string("dcp")) continue;
      SCOPED_TRACE(test.what + ", " + compat);
      defect = {.local = test.change};
      if (!test.change)
        defect.finish = [](SavePlan& plan) {
          const auto common = std::ranges::find(plan, kCommonStateKey, &WriteItem::key);
          if (common != plan.end()) common->source = item_of(plan, "rng/shard_0_4").source;
        };
      const SaveOptions options = wrong_in(compat);
      std::array<std::string, kRanks> errors;
      run_ranks(kRanks, [&](Communicator& comm) {
        errors[static_cast<std::size_t>(comm.rank())] = error_of(
            [&] { save(with_objects(comm.rank()), checkpoint("refused"), options, comm); });
      });
      for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr(test.message));
      EXPECT_FALSE(std::filesystem::exists(checkpoint("refused")));
      std::filesystem::remove_all(checkpoint("refused"));
    }
  }
}

TEST_F(WrongPlanners, ObjectsThatAllRanksRenameKeepTheirCells) {
  defect.local = [](SavePlan& plan, int) {
    for (WriteItem& item : plan) {
      if (item.key.starts_with("rng/")) item.key = "seeds" + item.key.substr(3);
    }
  };
  for (const char* const compat : {"megatron-0.19", "dcp"}) {
    const SaveOptions options = wrong_in(compat);
    run_ranks(kRanks, [&](Communicator& comm) {
      save(with_objects(comm.rank()), checkpoint(compat), options, comm);
    });
    const std::vector<ShardedObject> seeds = load_objects(checkpoint(compat), "seeds");
    ASSERT_THAT(seeds, SizeIs(kRanks)) << compat;
    EXPECT_EQ(seeds[2].data, Value("rng2"));
  }
}

TEST_F(WrongPlanners, DataIsWrittenWhereItIs) {
  // Rank 1 shall write what only rank 0, the main replica, has.
  const auto moved = [](bool object) {
    return [object](GlobalPlan& plan) {
      for (std::size_t i = 0; i < plan.items[0].size(); ++i) {
        if (plan.slots[0][i].is_object != object) continue;
        const std::string& key = object ? plan.metadata.objects[plan.slots[0][i].entry].key
                                        : plan.metadata.tensors[plan.slots[0][i].entry].key;
        if (key != "w" && key != "shared/shard_0_1") continue;
        plan.items[1].push_back(plan.items[0][i]);
        plan.slots[1].push_back(plan.slots[0][i]);
        plan.items[0].erase(plan.items[0].begin() + static_cast<std::ptrdiff_t>(i));
        plan.slots[0].erase(plan.slots[0].begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
    };
  };
  SaveOptions options = with("wrong");
  options.parallel.enabled = false;
  for (const bool object : {true, false}) {
    defect = {.global = moved(object)};
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state = with_objects(comm.rank());
      if (comm.rank() != 0) {
        state["w"].mutable_sharded_tensor().data.reset();
        state["shared"].mutable_sharded_object().has_data = false;
      }
      EXPECT_THAT(error_of([&] { save(state, checkpoint("refused"), options, comm); }),
                  HasSubstr("without data here"))
          << object;
    });
    EXPECT_FALSE(std::filesystem::exists(checkpoint("refused")));
  }
}

TEST_F(WrongPlanners, ATensorIsNotStoredWhereAnotherIs) {
  expect_refused(
      [](SavePlan& plan, int) {
        for (WriteItem& item : plan) {
          if (item.key == "decoder.bias") item.key = "decoder.norm";
        }
      },
      HasSubstr("'decoder.norm' stores [0:8] of 'decoder.bias' where it stores another tensor"));
}

TEST_F(WrongPlanners, PathsOfKeysDiffer) {
  StateDict state = Value::dict();
  state["a"]["b"] = arange({4});
  state["a.c"] = arange({4});
  const SaveOptions options = wrong_in("dcp");
  defect.local = [](SavePlan& plan, int) { item_of(plan, "a.b").key = "a.c.d"; };
  save(state, checkpoint("apart"), options);
  const StateDict stored = load_state_dict(checkpoint("apart"));
  EXPECT_EQ(stored.at("a").at("c.d"), state.at("a").at("b"));
  EXPECT_EQ(stored.at("a.c"), state.at("a.c"));

  Metadata metadata;
  metadata.tensors.resize(2);
  metadata.tensors[0].key = "x.y";
  metadata.tensors[1].key = "z";
  metadata.paths = {{"x.y", {"x", "y"}}};
  EXPECT_THAT(error_of([&] {
                add_paths(metadata, {{{"z", {"x", "y"}}}});
              }),
              HasSubstr("the keys 'x.y' and 'z' have one path, 'x.y'"));
  metadata.paths = {{"x.y", {"x", "y"}}, {"z", {"x", "y"}}};
  std::set<std::string> unused;
  EXPECT_THAT(error_of([&] { (void)select_keys(metadata, {}, unused); }),
              HasSubstr("planner_data gives the keys 'x.y' and 'z' one path"));
  EXPECT_THAT(select_keys(metadata, std::vector<std::string>{"z"}, unused), SizeIs(1));
}

/// Uses its setup when its time is over.
class LateSetup final : public MCoreSavePlanner {
 public:
  SavePlan finish_plan(SavePlan plan) override { return setup().ranks > 0 ? plan : SavePlan(); }
};
class NoSetup final : public MCoreSavePlanner {
 public:
  void set_up_planner(const SaveSetup&) override {}
};
class WrongRank final : public MCoreSavePlanner {
 public:
  GlobalPlan create_global_plan(const LocalPlans& plans) override {
    (void)plans[plans.size()];
    return MCoreSavePlanner::create_global_plan(plans);
  }
};

TEST_F(WrongPlanners, StepsOutOfTimeOrRangeAreErrors) {
  register_planner(save_planner_entry<LateSetup>("late_setup", "looks at its setup at the end"));
  register_planner(save_planner_entry<NoSetup>("no_setup", "forgets to set up its base"));
  register_planner(save_planner_entry<WrongRank>("wrong_rank", "looks for one more rank"));
  for (const char* const planner : {"late_setup", "no_setup"})
    EXPECT_THAT(refusal({}, planner),
                AllOf(HasSubstr("planner '" + std::string(planner) + "'"),
                      HasSubstr("setup() is called before set_up_planner(), or after")));
  EXPECT_THAT(
      refusal({}, "wrong_rank"),
      AllOf(HasSubstr("planner 'wrong_rank'"),
            HasSubstr("the plan of rank 4 is missing; 4 ranks have planned"), HasSubstr("rank 0")));
}

/// Passes the built-in steps more elements than exist.
class WrongSetup final : public MCoreSavePlanner {
 public:
  void set_up_planner(const SaveSetup& setup) override {
    shards_.assign(setup.shards.begin(), setup.shards.end());
    for (LocalShard& shard : shards_) {
      auto* const tensor = std::get_if<TensorShard>(&shard);
      if (tensor != nullptr && tensor->key == "decoder.norm")
        tensor->global_shape = tensor->box.sizes = {1000};
    }
    SaveSetup other = setup;
    other.shards = shards_;
    MCoreSavePlanner::set_up_planner(other);
  }

 private:
  std::vector<LocalShard> shards_;
};

TEST_F(WrongPlanners, ASetupThatIsPassedOnIsOfTheState) {
  register_planner(save_planner_entry<WrongSetup>("wrong_setup", "other shards"));
  EXPECT_THAT(refusal({}, "wrong_setup"), HasSubstr("takes 1,000 elements from number 0 on"));
}

/// Stores objects in its own form.
class WrongObjects final : public MCoreSavePlanner {
 public:
  bool resolves(const WriteItem& item) const override {
    return item.kind == WriteItem::Kind::kObject;
  }
  Bytes transform_object(const WriteItem& item, Bytes) const override {
    EXPECT_NE(item.key, kCommonStateKey);
    return Bytes(3);
  }
};

TEST_F(WrongPlanners, ObjectsStayReadable) {
  register_planner(save_planner_entry<WrongObjects>("wrong_objects", "no archives"));
  SaveOptions options = with("wrong_objects");
  options.compat = Compat::kMegatron019;
  StateDict state;
  state["step"] = 7;
  save(state, checkpoint("common"), options);
  EXPECT_EQ(load_common_state(checkpoint("common")).at("step").as_int(), 7);
  state["o"] = ShardedObject{.key = "o", .data = 1, .global_shape = {1}, .global_offset = {0}};
  EXPECT_THAT(error_of([&] { save(state, checkpoint("object"), options); }),
              HasSubstr("3 bytes that are not a torch.save file"));
}

TEST_F(WrongPlanners, OptionsOfPlannersWithoutOptionsAreRefused) {
  register_planner(save_planner_entry<WrongObjects>("wrong_objects", "no archives"));
  EXPECT_THAT(error_of([&] {
                save(state_of(0, 1), checkpoint("x"), with("wrong_objects", ", options: {a: 1}"));
              }),
              HasSubstr("the planner 'wrong_objects' has no options, but 'a' is given"));
  SaveOptions options;
  options.registered_planner.name = "mcore";
  EXPECT_THAT(error_of([&] { save(state_of(0, 1), checkpoint("x"), options); }),
              HasSubstr("is built in, not registered"));
}

TEST_F(WrongPlanners, AreCheckedWhereTheyOverride) {
  constexpr OverriddenSteps all = overridden_steps<Wrong>();
  EXPECT_TRUE(all.local_plan && all.global_plan && all.finish_plan);
  constexpr OverriddenSteps one = overridden_steps<WrongInPart>();
  EXPECT_TRUE(one.local_plan && !one.global_plan && !one.finish_plan);
}

TEST_F(WrongPlanners, GlobalPlansAreOfTheLocalOnes) {
  const auto metadata_loses = [](GlobalPlan& plan) { plan.metadata.tensors.pop_back(); };
  EXPECT_THAT(refusal({.global = metadata_loses}), HasSubstr("the global plan"));
  EXPECT_THAT(refusal({.global =
                           [](GlobalPlan& plan) {
                             plan.items[0].pop_back();
                             plan.slots[0].pop_back();
                           }}),
              HasSubstr("no rank writes its chunk"));
  EXPECT_THAT(refusal({.global =
                           [](GlobalPlan& plan) {
                             plan.items[1].push_back(plan.items[1].front());
                             plan.slots[1].push_back(plan.slots[1].front());
                           }}),
              HasSubstr("twice"));
  EXPECT_THAT(refusal({.global = [](GlobalPlan& plan) { plan.items[2].front().item = 77; }}),
              HasSubstr("shall write item 77"));
  EXPECT_THAT(refusal({.global =
                           [](GlobalPlan& plan) {
                             plan.items.pop_back();
                             plan.slots.pop_back();
                           }}),
              HasSubstr("is for 3 ranks"));
  EXPECT_THAT(refusal({.global =
                           [](GlobalPlan& plan) {
                             plan.metadata.tensors.front().properties.dtype = DType::kInt8;
                           }}),
              HasSubstr("another dtype or shape"));
  EXPECT_THAT(
      refusal({.global = [](GlobalPlan& plan) { plan.metadata.tensors.front().places.clear(); }}),
      HasSubstr("has 0 places for 4 chunks"));
  EXPECT_THAT(refusal({.global =
                           [](GlobalPlan& plan) {
                             plan.metadata.tensors[1].key = plan.metadata.tensors[0].key;
                           }}),
              HasSubstr("is in the metadata twice"));
}

TEST_F(WrongPlanners, WhatIsDecidedIsWritten) {
  EXPECT_THAT(refusal({.finish = [](SavePlan& plan) { plan.pop_back(); }}),
              HasSubstr("finish_plan() returned"));
  EXPECT_THAT(refusal({.resolve = [](const WriteItem&, const Tensor&) { return arange({1}); }}),
              HasSubstr("resolve_tensor() returned float32 of shape (1,)"));
  EXPECT_THAT(refusal({.resolve =
                           [](const WriteItem& item, const Tensor&) {
                             return Tensor::meta(item.properties.dtype, item.chunk.sizes);
                           }}),
              HasSubstr("without data"));
  EXPECT_THAT(refusal({.resolve = [](const WriteItem&, const Tensor&) -> Tensor {
                throw CheckpointError(ErrorCode::kUnavailable, "the key server does not answer");
              }}),
              AllOf(HasSubstr("planner 'wrong': the key server does not answer"),
                    HasSubstr("key 'decoder."), HasSubstr("rank ")));
}

TEST_F(WrongPlanners, TheCommonStateIsNotLeftOut) {
  SaveOptions options = with("wrong");
  options.compat = Compat::kMegatron019;
  save_with("whole", options);
  EXPECT_EQ(load_common_state(checkpoint("whole")).at("iteration"), Value(5));
  defect.local = [](SavePlan& plan, int) {
    std::erase_if(plan,
                  [](const WriteItem& item) { return item.kind == WriteItem::Kind::kObject; });
  };
  EXPECT_THAT(error_of([&] { save_with("lacking", options); }),
              HasSubstr("lacks the object of the common state"));
}

TEST_F(WrongPlanners, TheNextSaveSucceeds) {
  refusal({.global = [](GlobalPlan& plan) { plan.items.clear(); }});
  defect = {};
  save_with("good", with("wrong"));
  EXPECT_THAT(keys_of("good"), SizeIs(5));
}

}  // namespace
}  // namespace dckpt::testing::wrong_save_planner_test
