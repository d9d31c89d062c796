// Save planners that add items, store tensors in other shapes, change the state, and are told how
// their save ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/save/save_async.h"
#include "examples/planners/load_planners.h"
#include "tests/dist_checkpointing/planner/save_planners.h"

namespace dckpt::testing::added_items_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// The built-in planner with steps that a test adds.
struct Steps {
  std::function<StateDict(StateDict, const SaveSetup&)> prepare{};
  std::function<void(SavePlan&, const std::function<SavePlan(const ShardedTensor&)>&,
                     const std::function<WriteItem(const ShardedObject&)>&, int rank)>
      local{};
  std::function<bool(const WriteItem&)> resolves{};
  std::function<Tensor(const WriteItem&, Tensor)> resolve{};
};
Steps steps;
std::mutex mutex;
std::vector<std::string> ends;       // of all ranks
std::vector<std::string> locations;  // as planners have seen them

class Stepped final : public MCoreSavePlanner {
 public:
  StateDict prepare_state(StateDict state, const SaveSetup& setup) override {
    return steps.prepare ? steps.prepare(std::move(state), setup) : state;
  }
  SavePlan create_local_plan() override {
    SavePlan plan = MCoreSavePlanner::create_local_plan();
    {
      const std::lock_guard lock(mutex);
      locations.push_back(setup().location.display());
    }
    if (steps.local)
      steps.local(
          plan, [&](const ShardedTensor& tensor) { return add_tensor(tensor); },
          [&](const ShardedObject& object) { return add_object(object); }, rank());
    return plan;
  }
  bool resolves(const WriteItem& item) const override {
    return steps.resolves && steps.resolves(item);
  }
  Tensor resolve_tensor(const WriteItem& item, Tensor data) const override {
    return steps.resolve(item, std::move(data));
  }
  void end_save(const CheckpointError* failure) override {
    const std::lock_guard lock(mutex);
    ends.push_back(failure != nullptr ? failure->message() : "published");
  }
};

using Local = decltype(Steps::local);

class AddedItems : public Planners {
 protected:
  static void SetUpTestSuite() {
    Planners::SetUpTestSuite();
    example::register_int8();
    register_planner(save_planner_entry<Stepped>("stepped", "with steps of a test"));
    SavePlannerEntry dcp{.name = "stepped_dcp",
                         .rules = PlannerKind::kDcp,
                         .make = [](const StrategySpec&) { return std::make_unique<Stepped>(); }};
    register_planner(std::move(dcp));
  }
  void TearDown() override {
    steps = {};
    ends.clear();
    locations.clear();
  }

  static SaveOptions dcp_options() {
    SaveOptions options{.compat = Compat::kDcp};
    options.registered_planner.name = "stepped_dcp";
    return options;
  }
  static ShardedTensor table(int rank, const std::string& key = "checksums") {
    return ShardedTensor::from_box(key, numbers({1, 2}, 10 * rank), {kRanks, 2}, {rank, 0});
  }
  static Local adding_table(const std::string& key = "checksums") {
    return [key](SavePlan& plan, const auto& add_tensor, const auto&, int rank) {
      for (WriteItem& item : add_tensor(table(rank, key))) plan.push_back(std::move(item));
    };
  }

  /// Returns the error of all ranks; nothing is left of the save.
  std::string refusal(Steps wrong, const SaveOptions& options = with("stepped")) {
    steps = std::move(wrong);
    ends.clear();
    std::array<std::string, kRanks> errors;
    run_ranks(kRanks, [&](Communicator& comm) {
      errors[static_cast<std::size_t>(comm.rank())] =
          error_of([&] { save(state_of(comm.rank()), checkpoint("refused"), options, comm); });
    });
    for (const std::string& error : errors) EXPECT_EQ(error, errors[0]);
    EXPECT_FALSE(std::filesystem::exists(checkpoint("refused")));
    EXPECT_THAT(ends, SizeIs(kRanks)) << "each rank's planner is told once";
    return errors[0];
  }
};

TEST_F(AddedItems, AreStoredAndLoadedLikeThoseOfTheState) {
  steps.local = [](SavePlan& plan, const auto& add_tensor, const auto& add_object, int rank) {
    adding_table()(plan, add_tensor, add_object, rank);
    if (rank == 2)
      plan.push_back(
          add_object(ShardedObject{.key = "saved_by", .data = "rank 2", .has_data = true}));
  };
  save_with("added", with("stepped"));
  const StateDict loaded = load_state_dict(checkpoint("added"));
  const Tensor& checksums = loaded.at("checksums").as_tensor();
  EXPECT_EQ(checksums.shape(), Shape({kRanks, 2}));
  EXPECT_EQ(checksums.data<float>()[5], 21);
  EXPECT_EQ(load_objects(checkpoint("added"), "saved_by").at(0).data, Value("rank 2"));
  EXPECT_THAT(ends, AllOf(SizeIs(kRanks), Each("published")));
  EXPECT_THAT(locations, Each(checkpoint("added").string()));
}

TEST_F(AddedItems, AreInBackgroundSavesToo) {
  steps.local = adding_table();
  run_ranks(kRanks, [&](Communicator& comm) {
    AsyncSaver saver(with("stepped"), comm);
    for (const char* const name : {"first", "second"})
      saver.save(state_of(comm.rank()), checkpoint(name)).wait();
  });
  for (const char* const name : {"first", "second"})
    EXPECT_EQ(load_plain_tensors(checkpoint(name)).at("checksums").as_tensor().data<float>()[7],
              31);
  EXPECT_THAT(ends, AllOf(SizeIs(2 * kRanks), Each("published")));
}

TEST_F(AddedItems, HaveAPathInPlainDcp) {
  steps.local = adding_table("model.checksums");
  save_with("dcp", dcp_options());
  const StateDict loaded = load_state_dict(checkpoint("dcp"));
  EXPECT_EQ(loaded.at("model.checksums").as_tensor().data<float>()[3], 11);
}

TEST_F(AddedItems, OfOtherShapesAreMadeFromTheElementsAsThePlannerTakesThem) {
  // Pairs of columns become one complex number.
  steps.local = [](SavePlan& plan, const auto&, const auto&, int) {
    for (WriteItem& item : plan) {
      if (item.key != "decoder.w") continue;
      item.source_shape = item.chunk.sizes;
      item.size = {item.size[0] * 2};
      item.chunk = {{item.chunk.offsets[0] * 2}, {item.chunk.sizes[0] * 2}};
      item.properties.dtype = DType::kComplex64;
      item.nbytes = static_cast<std::uint64_t>(item.chunk.sizes[0]) * 8;
    }
  };
  steps.resolves = [](const WriteItem& item) { return item.key == "decoder.w"; };
  steps.resolve = [](const WriteItem& item, const Tensor& data) {
    EXPECT_EQ(data.dtype(), DType::kFloat32);
    EXPECT_EQ(data.shape(), *item.source_shape);
    return Tensor::from_bytes(DType::kComplex64, item.chunk.sizes, data.bytes());
  };
  save_with("pairs", with("stepped"));
  run_ranks(kRanks, [&](Communicator& comm) {
    AsyncSaver(with("stepped"), comm).save(state_of(comm.rank()), checkpoint("later")).wait();
  });
  for (const char* const name : {"pairs", "later"}) {
    const Tensor stored = load_plain_tensors(checkpoint(name)).at("decoder.w").as_tensor();
    EXPECT_EQ(stored.dtype(), DType::kComplex64);
    EXPECT_EQ(stored.shape(), Shape({32}));
    EXPECT_EQ(Tensor::from_bytes(DType::kFloat32, {64}, stored.bytes()).data<float>()[63], 63);
  }
}

TEST_F(AddedItems, OfAPreparedStateReplaceIt) {
  steps.prepare = [](StateDict state, const SaveSetup& setup) {
    EXPECT_TRUE(setup.shards.empty());
    ShardedTensor& weight = state["w"].mutable_sharded_tensor();
    weight.key = "ema.w";
    state["made"] = ShardedTensor::from_box("made", numbers({2}, setup.rank), {2 * setup.ranks},
                                            {2 * setup.rank});
    return state;
  };
  save_with("prepared", with("stepped"));
  EXPECT_THAT(keys_of("prepared"), AllOf(::testing::Contains("ema.w"), ::testing::Contains("made"),
                                         ::testing::Not(::testing::Contains("decoder.w"))));
}

TEST_F(AddedItems, OfTheInt8ExampleAreScales) {
  save_with("int8", with("int8_weights"));
  EXPECT_THAT(keys_of("int8"), ::testing::Contains("decoder.w.scales"));
  EXPECT_EQ(open_checkpoint(checkpoint("int8"))->metadata().storage_meta->load_planner,
            "int8_weights");
}

TEST_F(AddedItems, ThatAreWrongAreRefusedOnAllRanks) {
  const auto plan_edit = [](const std::function<void(SavePlan&)>& change) {
    return Steps{.local = [change](SavePlan& plan, const auto& add_tensor, const auto& add_object,
                                   int rank) {
      adding_table()(plan, add_tensor, add_object, rank);
      if (rank == 1) change(plan);
    }};
  };
  const struct {
    const char* what;
    Steps steps;
    const char* message;
  } defects[] = {
      {"a key of the state", {.local = adding_table("decoder.w")}, "that its planner adds"},
      {"a key of another rank's state",
       {.local =
            [](SavePlan& plan, const auto& add_tensor, const auto&, int rank) {
              if (rank == 3)
                plan = add_tensor(
                    ShardedTensor::whole("decoder.bias", numbers({8}, 0), {.replica_id = 1}));
            }},
       "that its planner adds"},
      {"a key of an object of the state",
       {.local =
            [](SavePlan& plan, const auto&, const auto& add_object, int rank) {
              if (rank == 0)
                plan.push_back(
                    add_object(ShardedObject{.key = "decoder.w", .data = 1, .has_data = true}));
            }},
       "decoder.w"},
      {"parts with a hole",
       {.local =
            [](SavePlan& plan, const auto& add_tensor, const auto& add_object, int rank) {
              if (rank != 1) adding_table()(plan, add_tensor, add_object, rank);
            }},
       "checksums"},
      {"parts that overlap",
       {.local =
            [](SavePlan& plan, const auto& add_tensor, const auto& add_object, int rank) {
              adding_table()(plan, add_tensor, add_object, rank == 1 ? 0 : rank);
            }},
       "checksums"},
      {"a tensor without data",
       {.local =
            [](SavePlan&, const auto& add_tensor, const auto&, int rank) {
              ShardedTensor empty = table(rank);
              empty.data.reset();
              add_tensor(empty);
            }},
       "needs data"},
      {"an object without data",
       {.local = [](SavePlan&, const auto&, const auto& add_object,
                    int) { add_object(ShardedObject{.key = "o", .has_data = false}); }},
       "needs data"},
      {"another source", plan_edit([](SavePlan& plan) { plan.back().source += 1; }),
       "but this rank has"},
      {"the state's source", plan_edit([](SavePlan& plan) { plan.back().source = 0; }),
       "leave WriteItem::added as it is"},
      {"not said to be added", plan_edit([](SavePlan& plan) { plan.back().added = false; }),
       "leave WriteItem::added as it is"},
      {"the state's said to be added", plan_edit([](SavePlan& plan) { plan.front().added = true; }),
       "leave WriteItem::added as it is"},
      {"stored twice", plan_edit([](SavePlan& plan) { plan.push_back(plan.back()); }),
       "that another item has taken"},
      {"another number of bytes", plan_edit([](SavePlan& plan) { plan.back().nbytes += 4; }),
       "says 12 bytes"},
      {"outside of its tensor",
       plan_edit([](SavePlan& plan) { plan.back().chunk.offsets[0] = kRanks; }),
       "which is no part of the shape"},
      {"a shape that nothing makes", plan_edit([](SavePlan& plan) {
         plan.back().source_shape = Shape{2, 1};
       }),
       "resolves() must accept it"},
      {"a negative shape", plan_edit([](SavePlan& plan) {
         plan.back().source_shape = Shape{-2, 1};
       }),
       "which is none"},
      {"more elements than there are", plan_edit([](SavePlan& plan) {
         plan.back().source_shape = Shape{2, 2};
       }),
       "but the tensor has 2"},
      {"preparing fails",
       {.prepare = [](StateDict, const SaveSetup&) -> StateDict {
         throw std::runtime_error("no state today");
       }},
       "no state today"},
      {"a prepared state that contradicts itself",
       {.prepare =
            [](StateDict state, const SaveSetup&) {
              state["w"].mutable_sharded_tensor().local_shape = {1, 1};
              return state;
            }},
       "decoder.w"},
      {"a prepared state without a rank's part",
       {.prepare =
            [](StateDict state, const SaveSetup& setup) {
              StateDict less = Value::dict();
              if (setup.rank != 2) less["w"] = state.at("w");
              return less;
            }},
       "decoder.w"},
  };
  for (const auto& [what, wrong, message] : defects)
    EXPECT_THAT(refusal(wrong), HasSubstr(message)) << what;
}

TEST_F(AddedItems, ThatCollideWithAnotherRanksAreRefusedUnderTheRulesOfDcpToo) {
  EXPECT_THAT(refusal({.local =
                           [](SavePlan& plan, const auto& add_tensor, const auto&, int rank) {
                             std::erase_if(plan, [&](const WriteItem& item) {
                               return rank == 3 && item.key == "decoder.bias";
                             });
                             if (rank != 3) return;
                             for (WriteItem& item :
                                  add_tensor(ShardedTensor::whole("decoder.bias", numbers({8}, 9))))
                               plan.push_back(std::move(item));
                           }},
                      dcp_options()),
              AllOf(HasSubstr("rank 3"), HasSubstr("that its planner adds")));
}

TEST_F(AddedItems, EndWithTheReasonOfAFailedSave) {
  std::filesystem::create_directories(checkpoint("there") / "something");
  std::ofstream(checkpoint("there") / "something" / "file") << "x";
  StateDict state = state_of(0, 1);
  const std::string error = error_of([&] { save(state, checkpoint("there"), with("stepped")); });
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_NE(ends[0], "published");
  EXPECT_THAT(error, HasSubstr(ends[0].substr(0, 30)));
}

TEST_F(AddedItems, NeedAFormatThatNamesTheirReader) {
  StateDict state = Value::dict();
  state["w"] = ShardedTensor::whole("w", arange({4, 4}));
  SaveOptions options = with("int8_weights");
  options.strategy.name = "zarr";
  EXPECT_THAT(error_of([&] { save(state, checkpoint("zarr"), options); }),
              AllOf(HasSubstr("int8_weights"), HasSubstr("save with torch_dist or dcp")));
}

}  // namespace
}  // namespace dckpt::testing::added_items_test
