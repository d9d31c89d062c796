// Planners for loads that are wrong: the error is the same on all ranks.

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

namespace dckpt::testing::wrong_load_planner_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

using Edit = std::function<void(LoadPlan&, int rank)>;
Edit edit;
std::function<void(std::vector<LoadPlan>&)> edit_global;

class Edited : public PlannerOfRank {
 public:
  LoadPlan create_local_plan() override {
    LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    if (edit) edit(plan, rank_);
    return plan;
  }
  std::vector<LoadPlan> create_global_plan(std::vector<LoadPlan> plans) override {
    if (edit_global) edit_global(plans);
    return plans;
  }
};

/// Resolves every tensor, on rank 1 incorrectly.
std::function<Tensor(const LoadItem&, Tensor)> resolve;
std::function<Tensor(Tensor)> commit;
class WrongResolver final : public PlannerOfRank {
 public:
  bool resolves(const LoadItem&) const override { return true; }
  Tensor resolve_tensor(const LoadItem& item, const Shape& shape) const override {
    Tensor right = MCoreLoadPlanner::resolve_tensor(item, shape);
    return rank_ == 1 && resolve ? resolve(item, right) : right;
  }
  Tensor commit_tensor(const LoadItem&, Tensor read) const override {
    return rank_ == 1 && commit ? commit(read) : read;
  }
};

class WrongLoadPlanners : public LoadPlanners {
 protected:
  static void SetUpTestSuite() {
    register_planner(LoadPlannerEntry{
        .name = "edited", .make = [](const StrategySpec&) { return std::make_unique<Edited>(); }});
    register_planner(LoadPlannerEntry{.name = "wrong_resolver", .make = [](const StrategySpec&) {
                                        return std::make_unique<WrongResolver>();
                                      }});
  }
  void SetUp() override {
    save_state();
    edit = {};
    edit_global = {};
    resolve = {};
    commit = {};
  }
  /// Returns the error of all ranks, after checking that another load works.
  std::string error_with(const std::string& planner) {
    LoadOptions options = with("", "planner: {kind: " + planner + "}").load;
    options.parallel.enabled = planner == "edited";
    std::array<std::string, kRanks> errors;
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state = state_of(comm.rank(), kRanks, 0);
      std::string& error = errors[static_cast<std::size_t>(comm.rank())];
      try {
        load(state, checkpoint(), options, comm);
        error = "no error";
      } catch (const CheckpointError& thrown) {
        error = thrown.message();
      }
      load(state, checkpoint(), {}, comm);
      EXPECT_EQ(plain_state(state), plain_state(state_of(comm.rank(), kRanks, 1)));
    });
    for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
    return errors[0];
  }
};

LoadItem& find(LoadPlan& plan, const std::string& key) {
  return *std::ranges::find(plan, key, [](const LoadItem& item) { return item.tensor.key; });
}

TEST_F(WrongLoadPlanners, AreTheSameErrorOnAllRanks) {
  const auto on_rank_1 = [](const std::function<void(LoadPlan&)>& change) {
    edit = [change](LoadPlan& plan, int rank) {
      if (rank == 1) change(plan);
    };
  };
  on_rank_1([](LoadPlan& plan) { plan.push_back(plan.front()); });
  EXPECT_THAT(error_with("edited"),
              AllOf(HasSubstr("planner 'edited'"), HasSubstr("for which there is another item")));
  on_rank_1([](LoadPlan& plan) { plan.front().target = 17; });
  EXPECT_THAT(error_with("edited"), HasSubstr("tensor 17 of the state, which has 3"));
  on_rank_1([](LoadPlan& plan) { find(plan, "decoder.w").tensor.local_shape[0] += 1; });
  EXPECT_THAT(error_with("edited"), HasSubstr("but the state's tensor 'decoder.w' has"));
  on_rank_1([](LoadPlan& plan) { find(plan, "decoder.w").tensor.dtype = DType::kInt8; });
  EXPECT_THAT(error_with("edited"), HasSubstr("resolves() must accept it"));
  on_rank_1([](LoadPlan& plan) { plan.front().tensor.key.clear(); });
  EXPECT_THAT(error_with("edited"), HasSubstr("has no key"));
  on_rank_1([](LoadPlan& plan) { find(plan, "decoder.w").tensor.key = "decoder.x"; });
  EXPECT_THAT(error_with("edited"), HasSubstr("decoder.x"));
  on_rank_1([](LoadPlan& plan) { find(plan, "decoder.w").tensor.global_offset[0] = 0; });
  EXPECT_THAT(error_with("edited"), HasSubstr("decoder.w")) << "rows 3 to 6 are nobody's";
  on_rank_1([](LoadPlan&) { throw std::runtime_error("no plan today"); });
  EXPECT_THAT(error_with("edited"), HasSubstr("no plan today"));
}

TEST_F(WrongLoadPlanners, ThatDecideWronglyForAllAreTheSameErrorOnAllRanks) {
  edit_global = [](std::vector<LoadPlan>& plans) { plans.pop_back(); };
  EXPECT_THAT(error_with("edited"),
              AllOf(HasSubstr("planner 'edited'"), HasSubstr("3 plans for 4 ranks; one for each")));
  edit_global = [](std::vector<LoadPlan>& plans) { plans[2].front().target = 17; };
  EXPECT_THAT(error_with("edited"), HasSubstr("tensor 17 of the state, which has 3"));
  edit_global = [](std::vector<LoadPlan>& plans) { std::swap(plans[2], plans[3]); };
  EXPECT_THAT(error_with("edited"), HasSubstr("decoder.w")) << "of another shape";
  edit_global = [](std::vector<LoadPlan>& plans) { plans[3].front().tensor.global_offset[0] = -1; };
  EXPECT_THAT(error_with("edited"), HasSubstr("does not lie inside"));
  edit_global = [](std::vector<LoadPlan>&) { throw std::runtime_error("no plans today"); };
  EXPECT_THAT(error_with("edited"), HasSubstr("no plans today"));
}

TEST_F(WrongLoadPlanners, ThatResolveWronglyAreTheSameErrorOnAllRanks) {
  resolve = [](const LoadItem&, const Tensor& right) {
    return Tensor::empty(DType::kFloat64, right.shape());
  };
  EXPECT_THAT(error_with("wrong_resolver"), HasSubstr("resolve_tensor() returned"));
  resolve = [](const LoadItem&, const Tensor& right) {
    static Tensor shared;
    if (shared.nbytes() < 256) shared = Tensor::empty(DType::kFloat32, {64});
    return shared.narrow(0, 0, right.numel()).view(right.shape());
  };
  EXPECT_THAT(error_with("wrong_resolver"), HasSubstr("returned the memory that"));
  resolve = {};
  commit = [](const Tensor& read) { return read.narrow(0, 0, 1); };
  EXPECT_THAT(error_with("wrong_resolver"), HasSubstr("commit_tensor() returned"));
  commit = [](const Tensor&) -> Tensor { throw std::runtime_error("no tensor today"); };
  EXPECT_THAT(error_with("wrong_resolver"),
              AllOf(HasSubstr("planner 'wrong_resolver'"), HasSubstr("no tensor today"),
                    HasSubstr("rank 1")));
}

}  // namespace
}  // namespace dckpt::testing::wrong_load_planner_test
