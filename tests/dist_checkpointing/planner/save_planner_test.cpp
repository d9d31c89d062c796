#include "dist_checkpointing/planner/save_planner.h"

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
#include "operations/inspect/diff.h"
#include "strategies/contract/common_state.h"
#include "tests/dist_checkpointing/planner/save_planners.h"
#include "tests/support/code_of.h"
#include "tests/support/expect_error.h"

namespace dckpt::testing::save_planner_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

TEST_F(Planners, BuiltInOnesAreChosenByKindAndConform) {
  for (const char* const kind : {"mcore", "default", "standard"}) {
    const std::string compat = kind == std::string("mcore") ? "" : "compat: dcp, ";
    const SaveOptions options =
        Policy::from_text("version: 1\nsave: {" + compat + "planner: {kind: " + kind + "}}").save;
    EXPECT_THAT(check_planner(options, checkpoint(kind)).problems, IsEmpty()) << kind;
  }
}

TEST_F(Planners, ThoseOfTheExampleConform) {
  for (const auto& [planner, more] : std::vector<std::pair<std::string, std::string>>{
           {"bf16_weights", ""},
           {"by_node", ", options: {ranks_per_node: 2}"},
           {"without", ", options: {keys: [decoder.norm]}"},
           {"checksum_log", ""}}) {
    EXPECT_THAT(check_planner(with(planner, more), checkpoint(planner)).problems, IsEmpty())
        << planner;
  }
}

/// Stores `w` under another name, both halves of `halves` under names of their own, and not `b`.
class Renamed final : public DefaultSavePlanner {
 public:
  SavePlan create_local_plan() override {
    SavePlan plan;
    for (WriteItem& item : DefaultSavePlanner::create_local_plan()) {
      if (item.key == "model.b") continue;
      if (item.key == "model.w") item.key = "model.w.v2";
      if (item.key == "model.halves") {
        item.size = item.chunk.sizes = {2};
        item.nbytes /= 2;
        WriteItem second = item;
        second.key += ".2";
        second.source_begin = 2;
        plan.push_back(std::move(second));
        item.key += ".1";
      }
      plan.push_back(std::move(item));
    }
    return plan;
  }
};

TEST_F(Planners, KeysThatTheyRenameHavePathsOfTheirOwn) {
  register_planner(save_planner_entry<Renamed>("renamed", "other names"));
  StateDict saved = Value::dict();
  for (const char* const name : {"w", "b", "halves"}) saved["model"][name] = arange({4});
  saved["model"]["step"] = 5;
  const std::string policy = "version: 1\nsave: {compat: dcp, planner: {kind: renamed}}";
  save(saved, checkpoint(), Policy::from_text(policy).save);
  const StateDict stored = load_state_dict(checkpoint());
  EXPECT_EQ(stored.at("model").at("w.v2"), saved.at("model").at("w"));
  EXPECT_FALSE(stored.at("model").contains("w"));
  EXPECT_EQ(stored.at("model").at("step"), Value(5));
  EXPECT_FALSE(stored.at("model").contains("b"));
  EXPECT_TRUE(equal(stored.at("model").at("halves.2").as_tensor(), numbers({2}, 2)));
  EXPECT_THAT(keys_of("checkpoint"),
              UnorderedElementsAre("model.w.v2", "model.halves.1", "model.halves.2"));
}

TEST_F(Planners, WeightsMayBeStoredWithFewerDigitsThanTheOptimizersState) {
  save_with("built_in", {});
  save_with("narrow", with("bf16_weights"));
  const StateDict before = load_plain_tensors(checkpoint("built_in"));
  const StateDict after = load_plain_tensors(checkpoint("narrow"));
  EXPECT_EQ(after.at("optimizer.m"), before.at("optimizer.m"));
  const Tensor narrow = after.at("decoder.w").as_tensor();
  EXPECT_EQ(narrow.dtype(), DType::kBFloat16);
  EXPECT_EQ(Value(to_dtype(narrow, DType::kFloat32)), before.at("decoder.w"))
      << "small whole numbers need no more digits";

  StateDict state = state_of(0, 1);
  load(state, checkpoint("narrow"), {.cast = Cast::kAllow});
  EXPECT_EQ(state.at("w").as_sharded_tensor().data->dtype(), DType::kFloat32);
}

TEST_F(Planners, WhatIsLeftOutIsNotInTheCheckpoint) {
  save_with("rest", with("without", ", options: {keys: [frozen.]}"));
  EXPECT_THAT(keys_of("rest"), ::testing::Not(::testing::Contains("frozen.emb")));
  StateDict state = state_of(0, 1);
  load(state, checkpoint("rest"), {.strict = StrictHandling::kLogUnexpected});
}

TEST_F(Planners, ReplicasAreWrittenByTheNodesInTurn) {
  save_with("by_node", with("by_node", ", options: {ranks_per_node: 2}"));
  const auto reader = open_checkpoint(checkpoint("by_node"));
  std::set<std::string> nodes;
  for (const TensorStorageMetadata& tensor : reader->metadata().tensors) {
    if (tensor.key != "decoder.norm" && tensor.key != "decoder.bias") continue;
    const std::string& file = reader->metadata().files[tensor.places.front().file];
    nodes.insert(file.substr(2, 1) < "2" ? "first" : "second");
  }
  EXPECT_THAT(nodes, SizeIs(2));
}

TEST_F(Planners, ResolveOnceForEachStoredPartAndInTheBackgroundFromTheCopies) {
  const std::size_t before = example::checksum_log().size();
  run_ranks(kRanks, [&](Communicator& comm) {
    AsyncSaver saver(with("checksum_log"), comm);
    StateDict state = state_of(comm.rank());
    PendingSave pending = saver.save(state, checkpoint("noted"));
    Tensor mine = *state["w"].as_sharded_tensor().data;
    for (float& element : std::span(mine.data<float>(), 16)) element = -1;
    pending.wait();
  });
  EXPECT_EQ(example::checksum_log().size() - before, std::size_t{2 * kRanks + 3});
  save_with("built_in", {});
  EXPECT_EQ(load_plain_tensors(checkpoint("noted")), load_plain_tensors(checkpoint("built_in")));
}

// ---- Plans that are reused.

std::atomic<int> decisions = 0;
std::string depends_on;

class Counting final : public MCoreSavePlanner {
 public:
  GlobalPlan create_global_plan(const LocalPlans& plans) override {
    ++decisions;
    return MCoreSavePlanner::create_global_plan(plans);
  }
  std::optional<std::string> cache_key() const override {
    return depends_on.empty() ? std::nullopt : std::optional(depends_on);
  }
};

TEST_F(Planners, SayWhetherTheirPlansMayBeUsedAgain) {
  register_planner({.name = "counting",
                    .make = [](const StrategySpec&) { return std::make_unique<Counting>(); }});
  std::array<SavePlanCache, kRanks> caches;
  const auto decided = [&](const std::string& key, const SaveOptions& options) {
    depends_on = key;
    decisions = 0;
    SaveOptions again = options;
    again.overwrite = true;
    run_ranks(kRanks, [&](Communicator& comm) {
      save(state_of(comm.rank()), checkpoint(), again, comm,
           caches[static_cast<std::size_t>(comm.rank())]);
    });
    return decisions.load();
  };
  const SaveOptions counting = with("counting");
  EXPECT_EQ(decided("", counting), 1);
  EXPECT_EQ(decided("", counting), 1) << "by default never";
  EXPECT_EQ(decided("three nodes", counting), 1);
  EXPECT_EQ(decided("three nodes", counting), 0);
  EXPECT_EQ(decided("two nodes", counting), 1) << "what they depend on has changed";
  decided("two nodes", with("mcore"));
  EXPECT_EQ(decided("two nodes", counting), 1) << "the plan of another planner";
}

// ---- Policies.

TEST_F(Planners, AreNamedByPolicies) {
  const SaveOptions by_node = with("by_node", ", options: {ranks_per_node: 4}");
  EXPECT_EQ(by_node.registered_planner.name, "by_node");
  const std::string text = to_yaml(Policy{.save = by_node});
  EXPECT_EQ(Policy::from_text(text).save, by_node) << text;
  EXPECT_EQ(Policy::from_text(
                "version: 1\nsave: {planner: {options: {ranks_per_node: 4}, kind: by_node}}")
                .save.registered_planner,
            by_node.registered_planner)
      << "in any order";

  const auto refusal = [&](const std::string& yaml) {
    return error_of([&] { Policy::from_text("version: 1\n" + yaml); });
  };
  EXPECT_THAT(refusal("save: {planner: {kind: by_nod}}"), HasSubstr("by_node"));
  EXPECT_THAT(refusal("save: {planner: {kind: mcore, options: {a: 1}}}"),
              HasSubstr("options: are for registered planners"));
  EXPECT_THAT(
      error_of([&] { save_with("x", with("by_node", ", options: {ranks_per_nod: 4}"), 1); }),
      AllOf(HasSubstr("save.planner.options"), HasSubstr("ranks_per_node")));
  SaveOptions unknown;
  unknown.registered_planner.name = "by_nodes";
  EXPECT_THAT(error_of([&] { save_with("x", unknown, 1); }),
              AllOf(HasSubstr("no planner 'by_nodes'"), HasSubstr("did you mean 'by_node'?")));
  EXPECT_THAT(error_of([] {
                register_planner({.name = "mcore", .make = [](const StrategySpec&) {
                                    return std::make_unique<MCoreSavePlanner>();
                                  }});
              }),
              HasSubstr("built-in kind"));
}

}  // namespace
}  // namespace dckpt::testing::save_planner_test
