// Load planners that fill a tensor of the state by parts, or from boxes of other shapes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "dist_checkpointing/planner/load_planner.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "mapping/state/sharded_tree.h"
#include "tests/dist_checkpointing/planner/load_planners.h"

namespace dckpt::testing::filled_parts_test {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

/// Loads (in, out) matrices that are stored as (out, in), under keys with ".T".
class Transposed : public MCoreLoadPlanner {
 public:
  LoadPlan create_local_plan() override {
    LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    for (LoadItem& item : plan) {
      ShardedTensor& tensor = item.tensor;
      if (setup().metadata.find_tensor(tensor.key + ".T") == nullptr) continue;
      tensor.key += ".T";
      tensor.axis_fragmentations.reset();
      for (Shape* const shape : {&tensor.local_shape, &tensor.global_shape, &tensor.global_offset})
        std::swap((*shape)[0], (*shape)[1]);
    }
    return plan;
  }
  bool resolves(const LoadItem& item) const override { return item.tensor.key.ends_with(".T"); }
  Tensor commit_tensor(const LoadItem&, Tensor read) const override {
    return Tensor(read.dtype(), {read.shape()[1], read.shape()[0]}, {1, read.shape()[1]},
                  read.data(), read.owner())
        .contiguous();
  }
};

/// The built-in plan, which a test edits.
struct Edits {
  std::function<void(LoadPlan&, int rank)> plan{};
  std::function<void(LoadPlan&)> finish{};
  std::function<bool(const LoadItem&)> resolves{};
  std::function<Tensor(const LoadItem&, const Shape&)> memory{};
  std::function<Tensor(std::span<const LoadItem>, std::vector<Tensor>)> commit{};
};
Edits edits;

class Edited final : public PlannerOfRank {
 public:
  LoadPlan create_local_plan() override {
    LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    if (edits.plan) edits.plan(plan, rank_);
    return plan;
  }
  LoadPlan finish_plan(LoadPlan plan) override {
    if (edits.finish) edits.finish(plan);
    return plan;
  }
  bool resolves(const LoadItem& item) const override {
    return edits.resolves && edits.resolves(item);
  }
  Tensor resolve_tensor(const LoadItem& item, const Shape& shape) const override {
    return edits.memory ? edits.memory(item, shape) : MCoreLoadPlanner::resolve_tensor(item, shape);
  }
  Tensor commit_tensors(std::span<const LoadItem> items, std::vector<Tensor> read) const override {
    return edits.commit ? edits.commit(items, std::move(read))
                        : MCoreLoadPlanner::commit_tensors(items, std::move(read));
  }
};

/// Reads into the memory of the state, and changes the elements there.
class InPlace final : public MCoreLoadPlanner {
 public:
  LoadPlan create_local_plan() override {
    for (const ShardedTensor& tensor : setup().wanted) memory_.push_back(*tensor.data);
    return MCoreLoadPlanner::create_local_plan();
  }
  bool resolves(const LoadItem&) const override { return true; }
  Tensor resolve_tensor(const LoadItem& item, const Shape&) const override {
    return memory_[item.target];
  }
  Tensor commit_tensor(const LoadItem&, Tensor read) const override {
    for (std::int64_t i = 0; i < read.numel(); ++i) read.data<float>()[i] *= 2;
    return read;
  }

 private:
  std::vector<Tensor> memory_;
};

class FilledParts : public LoadPlanners {
 protected:
  static void SetUpTestSuite() {
    LoadPlanners::SetUpTestSuite();
    class Final final : public Transposed {};
    register_planner(load_planner_entry<Final>("transposed", "the transposed of what is stored"));
    register_planner(load_planner_entry<Edited>("edited_parts", "as a test says"));
    register_planner(load_planner_entry<InPlace>("in_place", "twice what is stored"));
  }
  void TearDown() override { edits = {}; }

  static LoadOptions planned_by(const std::string& name) {
    return with("", "planner: {kind: " + name + "}").load;
  }
  static StateDict qkv(int rank, int ranks, float value, bool joined) {
    StateDict state = Value::dict();
    state["other"] = rows_of("other", 5, rank, ranks, value);
    if (joined) state["qkv"] = rows_of("layer.qkv.weight", 12, rank, ranks, value);
    for (const int part : {0, 1, 2}) {
      const std::string name(1, "qkv"[part]);
      const std::int64_t begin = 4 * rank / ranks;
      const std::int64_t end = 4 * (rank + 1) / ranks;
      if (!joined)
        state[name] = ShardedTensor::from_box(
            "layer." + name + ".weight", LoadPlanners::part(end - begin, part * 4 + begin, value),
            {4, 4}, {begin, 0});
    }
    return state;
  }
  /// Returns the error of all ranks; the next load works.
  std::string refusal(Edits wrong) {
    edits = std::move(wrong);
    std::array<std::string, kRanks> errors;
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state = state_of(comm.rank(), kRanks, 0);
      errors[static_cast<std::size_t>(comm.rank())] =
          error_of([&] { load(state, checkpoint(), planned_by("edited_parts"), comm); });
      load(state, checkpoint(), {}, comm);
      EXPECT_EQ(plain_state(state), plain_state(state_of(comm.rank(), kRanks, 1)));
    });
    for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
    return errors[0];
  }
};

TEST_F(FilledParts, OfAJoinedTensorAreReadFromThreeAndBack) {
  for (const bool joined : {true, false}) {
    save_on(4, [&](int rank) { return qkv(rank, 4, 1, joined); }, {.overwrite = true});
    for (const int ranks : {1, 2, 3, 5}) {
      for (const bool parallel : {false, true}) {
        LoadOptions options = planned_by("qkv");
        options.parallel.enabled = parallel;
        run_ranks(ranks, [&](Communicator& comm) {
          StateDict state = qkv(comm.rank(), ranks, 0, !joined);
          const Tensor memory = *state.at("other").as_sharded_tensor().data;
          const LoadReport report = load(state, checkpoint(), options, comm);
          EXPECT_EQ(plain_state(state), plain_state(qkv(comm.rank(), ranks, 1, !joined)))
              << ranks << joined;
          EXPECT_EQ(state.at("other").as_sharded_tensor().data->data(), memory.data());
          EXPECT_TRUE(report.access_checked);
        });
      }
    }
  }
}

TEST_F(FilledParts, MakeMemoryWhereTheStateHasNone) {
  save_on(2, [&](int rank) { return qkv(rank, 2, 1, false); });
  StateDict state = qkv(0, 1, 0, true);
  state["qkv"].mutable_sharded_tensor().data.reset();
  load(state, checkpoint(), planned_by("qkv"));
  EXPECT_TRUE(equal(*state.at("qkv").as_sharded_tensor().data, part(12, 0)));
  EXPECT_EQ(state.at("qkv").as_sharded_tensor().key, "layer.qkv.weight");
}

TEST_F(FilledParts, AreReportedOnceWhenTheTensorIsComplete) {
  save_on(2, [&](int rank) { return qkv(rank, 2, 1, false); });
  std::mutex mutex;
  std::multiset<std::string> ready;
  LoadHooks hooks;
  hooks.tensor_ready = [&](const std::string& key, const Tensor& tensor) {
    const std::lock_guard lock(mutex);
    ready.insert(key);
    if (key != "layer.qkv.weight") return;
    EXPECT_TRUE(equal(tensor, part(12, 0)));
  };
  StateDict state = qkv(0, 1, 0, true);
  const auto alone = single_rank();
  load(state, checkpoint(), planned_by("qkv"), *alone, hooks);
  EXPECT_THAT(ready, UnorderedElementsAre("layer.qkv.weight", "other"));
}

TEST_F(FilledParts, OfOtherShapesAreTransposedInEverySharding) {
  const Tensor whole = part(6, 0);
  save_on(3, [&](int rank) {
    StateDict state = Value::dict();
    state["w"] =
        ShardedTensor::from_box("w.T", whole.narrow(0, 2 * rank, 2), {6, 4}, {2 * rank, 0});
    return state;
  });
  const Tensor expected =
      Tensor(DType::kFloat32, {4, 6}, {1, 4}, const_cast<std::byte*>(whole.data()), whole.owner())
          .contiguous();
  for (const int ranks : {1, 2, 3}) {
    for (const std::size_t axis : {0U, 1U}) {
      run_ranks(ranks, [&](Communicator& comm) {
        const std::int64_t extent = axis == 0 ? 4 : 6;
        const std::int64_t begin = extent * comm.rank() / ranks;
        const std::int64_t size = extent * (comm.rank() + 1) / ranks - begin;
        const Tensor mine = expected.narrow(axis, begin, size).contiguous();
        Shape offset{0, 0};
        offset[axis] = begin;
        StateDict state = Value::dict();
        state["w"] = ShardedTensor::from_box("w", Tensor::zeros(DType::kFloat32, mine.shape()),
                                             {4, 6}, offset);
        load(state, checkpoint(), planned_by("transposed"), comm);
        EXPECT_TRUE(equal(*state.at("w").as_sharded_tensor().data, mine)) << ranks << axis;
      });
    }
  }
}

TEST_F(FilledParts, AreReadIntoTheMemoryOfTheStateIfAPlannerGivesIt) {
  save_state();
  for (const bool parallel : {false, true}) {
    LoadOptions options = planned_by("in_place");
    options.parallel.enabled = parallel;
    load_on(3, options, [](int rank, const StateDict& state) {
      EXPECT_EQ(plain_state(state), plain_state(state_of(rank, 3, 2)));
    });
  }
}

TEST_F(FilledParts, LoadPlainStatesToo) {
  save_on(2, [&](int rank) { return qkv(rank, 2, 1, true); });
  StateDict state = qkv(0, 1, 0, false);
  load_plain(state, checkpoint(), planned_by("qkv"));
  EXPECT_TRUE(equal(state.at("k").as_tensor(), part(4, 4)));
}

TEST_F(FilledParts, ComeFromTheBaseModelWhereTheyAreFrozen) {
  save_state();
  std::filesystem::rename(checkpoint(), checkpoint("base"));
  save_on(2, [](int rank) {
    StateDict state = state_of(rank, 2, 2);
    StateDict own = Value::dict();
    for (const char* const name : {"m", "norm", "rng"}) own[name] = state.at(name);
    return own;
  });
  run_ranks(3, [&](Communicator& comm) {
    StateDict state = state_of(comm.rank(), 3, 0);
    state["w"].mutable_sharded_tensor().data.reset();
    load(state, checkpoint(),
         with("", "planner: {kind: with_base, options: {from: '" + checkpoint("base").string() +
                      "', keys: [decoder.w]}}")
             .load,
         comm);
    EXPECT_TRUE(equal(*state.at("w").as_sharded_tensor().data,
                      *state_of(comm.rank(), 3, 1).at("w").as_sharded_tensor().data));
    EXPECT_TRUE(equal(*state.at("m").as_sharded_tensor().data,
                      *state_of(comm.rank(), 3, 2).at("m").as_sharded_tensor().data));
  });
}

/// Cuts the item of decoder.w into its first row and the rest.
void cut(LoadPlan& plan) {
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (plan[i].tensor.key != "decoder.w") continue;
    LoadItem rest = plan[i];
    const std::int64_t rows = rest.tensor.local_shape[0];
    plan[i].tensor.local_shape[0] = 1;
    plan[i].part = Box{{0, 0}, {1, 4}};
    rest.tensor.local_shape[0] = rows - 1;
    rest.tensor.global_offset[0] += 1;
    rest.part = Box{{1, 0}, {rows - 1, 4}};
    plan.push_back(rest);
    return;
  }
}

TEST_F(FilledParts, AreTheSameErrorOnAllRanksIfOneIsWrong) {
  save_state();
  const auto on_rank_1 = [](const std::function<void(LoadPlan&)>& change) {
    return Edits{.plan = [change](LoadPlan& plan, int rank) {
      cut(plan);
      if (rank == 1) change(plan);
    }};
  };
  const auto resolving = [&](Edits wrong) {
    wrong.resolves = [](const LoadItem& item) { return item.tensor.key == "decoder.w"; };
    return wrong;
  };
  const struct {
    const char* what;
    Edits edits;
    const char* message;
  } defects[] = {
      {"a part is missing", on_rank_1([](LoadPlan& plan) { plan.pop_back(); }), "do not fill it"},
      {"two parts overlap", on_rank_1([](LoadPlan& plan) {
         plan.back().part = Box{{0, 0}, plan.back().part->sizes};
       }),
       "do not fill it"},
      {"a part is there twice", on_rank_1([](LoadPlan& plan) { plan.push_back(plan.back()); }),
       "for which there is another item"},
      {"a part lies outside", on_rank_1([](LoadPlan& plan) { plan.back().part->offsets[0] += 1; }),
       "fills"},
      {"a part has no elements", on_rank_1([](LoadPlan& plan) {
         LoadItem none = plan.back();
         none.part->sizes[0] = none.tensor.local_shape[0] = 0;
         plan.push_back(none);
       }),
       "fills no elements"},
      {"a part is negative", on_rank_1([](LoadPlan& plan) { plan.back().part->sizes[0] = -1; }),
       "fills"},
      {"a part has another number of axes", on_rank_1([](LoadPlan& plan) {
         plan.back().part = Box{{1}, {2}};
       }),
       "fills"},
      {"a part is larger than what is read",
       on_rank_1([](LoadPlan& plan) { plan.back().tensor.local_shape[0] -= 1; }), "has the shape"},
      {"a part has no key", on_rank_1([](LoadPlan& plan) { plan.back().tensor.key.clear(); }),
       "has no key"},
      {"a part is of another dtype",
       on_rank_1([](LoadPlan& plan) { plan.back().tensor.dtype = DType::kInt8; }),
       "resolves() must accept it"},
      {"a part says another dtype for the state",
       on_rank_1([](LoadPlan& plan) { plan.back().wanted = DType::kInt8; }),
       "leave LoadItem::wanted as it is"},
      {"a part is of a tensor that is not stored",
       on_rank_1([](LoadPlan& plan) { plan.back().tensor.key = "decoder.x"; }), "decoder.x"},
      {"a part is read beyond the stored tensor",
       on_rank_1([](LoadPlan& plan) { plan.back().tensor.global_offset[0] = 12; }),
       "does not lie inside"},
      {"a part is for no tensor of the state",
       on_rank_1([](LoadPlan& plan) { plan.back().target = 99; }),
       "tensor 99 of the state, which has 3"},
      {"the parts change at the end",
       {.finish =
            [](LoadPlan& plan) {
              cut(plan);
              plan.pop_back();
            }},
       "do not fill it"},
      {"several items of a part are not made into one",
       resolving({.plan = [](LoadPlan& plan, int) { plan.push_back(plan[0]); }}), "override it"},
      {"the memory of two items is the same",
       resolving({.plan = [](LoadPlan& plan, int) { cut(plan); },
                  .memory =
                      [](const LoadItem& item, const Shape& shape) {
                        static const Tensor shared = Tensor::empty(DType::kFloat32, {64});
                        return shared.narrow(0, 0, numel(shape)).view(shape);
                      }}),
       "returned the memory that"},
      {"the memory is of another shape",
       resolving({.memory = [](const LoadItem& item,
                               const Shape&) { return Tensor::empty(item.tensor.dtype, {1}); }}),
       "resolve_tensor() returned"},
      {"what is made is of another shape",
       resolving(
           {.commit = [](std::span<const LoadItem>,
                         std::vector<Tensor> read) { return read[0].view({read[0].numel()}); }}),
       "commit_tensor() returned"},
      {"what is made is of another dtype",
       resolving({.commit =
                      [](std::span<const LoadItem>, std::vector<Tensor> read) {
                        return Tensor::zeros(DType::kFloat64, read[0].shape());
                      }}),
       "commit_tensor() returned"},
      {"making it fails",
       resolving({.commit = [](std::span<const LoadItem>, std::vector<Tensor>) -> Tensor {
         throw std::runtime_error("no part today");
       }}),
       "no part today"},
  };
  for (const auto& [what, wrong, message] : defects)
    EXPECT_THAT(refusal(wrong), HasSubstr(message)) << what;
}

}  // namespace
}  // namespace dckpt::testing::filled_parts_test
