// Readers, conversions and comparisons of what a planner has stored.

#include "dist_checkpointing/open/planned_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "configs/policy/policy.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "examples/planners/encryption.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "tests/dist_checkpointing/planner/load_planners.h"

namespace dckpt::testing::planned_view_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Loads and sees a tensor "half" of each stored one: its first rows. Leaves out "decoder.norm".
class Halves final : public MCoreLoadPlanner {
 public:
  std::vector<TensorStorageMetadata> contents(const LoadSetup& setup) const override {
    std::vector<TensorStorageMetadata> seen;
    for (const TensorStorageMetadata& tensor : setup.metadata.tensors) {
      TensorStorageMetadata& half = seen.emplace_back();
      half.key = tensor.key + ".half";
      half.properties = tensor.properties;
      half.size = tensor.global_shape();
      half.size[0] /= 2;
    }
    return seen;
  }
  LoadPlan create_local_plan() override {
    LoadPlan plan = MCoreLoadPlanner::create_local_plan();
    std::erase_if(plan,
                  [](const LoadItem& item) { return item.tensor.key.starts_with("decoder.norm"); });
    for (LoadItem& item : plan) {
      item.tensor.key.resize(item.tensor.key.size() - 5);
      item.tensor.global_shape = setup().metadata.find_tensor(item.tensor.key)->global_shape();
    }
    return plan;
  }
  Value load_bytes(const std::string&, Value stored) const override { return stored.as_int() + 1; }
};

class PlannedView : public LoadPlanners {
 protected:
  static void SetUpTestSuite() {
    LoadPlanners::SetUpTestSuite();
    example::register_encryption();
    register_planner(load_planner_entry<Halves>("halves", "the first half of all"));
    class SaveForNobody final : public MCoreSavePlanner {};
    SavePlannerEntry nobody =
        save_planner_entry<SaveForNobody>("for_nobody", "names a planner that is not there");
    nobody.read_by = "third_party";
    register_planner(std::move(nobody));
  }
  void save_int8() { save_state(with("planner: {kind: int8_weights}", "").save); }
  static OpenOptions seen_by(const std::string& planner) { return {.planner = {.name = planner}}; }
};

TEST_F(PlannedView, ShowsWhatWasSaved) {
  save_int8();
  EXPECT_NE(open_checkpoint(checkpoint())->metadata().find_tensor("decoder.w.scales"), nullptr);
  const auto reader = open_checkpoint(checkpoint(), seen_by(std::string(kAutoStrategy)));
  EXPECT_EQ(reader->metadata().find_tensor("decoder.w.scales"), nullptr);
  EXPECT_EQ(reader->metadata().find_tensor("decoder.w")->properties.dtype, DType::kFloat32);
  const LoadOptions options = with("", "planner: {kind: int8_weights}").load;
  EXPECT_TRUE(
      equal(load_plain_tensors(checkpoint(), options).at("decoder.w").as_tensor(), part(13, 0)));
  const StateDict all = load_state_dict(checkpoint(), {}, options);
  EXPECT_TRUE(equal(all.at("decoder.norm").as_tensor(), part(2, 0)));
  EXPECT_TRUE(equal(all.at("optimizer.m").as_tensor(), part(13, 0)));
  EXPECT_EQ(load_objects(checkpoint(), "rng", options).size(), 1U);
}

TEST_F(PlannedView, IsConvertedAsWhatWasSaved) {
  save_int8();
  ConvertOptions options;
  options.target.ranks = 2;
  convert(checkpoint(), checkpoint("plain"), options);
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](Communicator& comm) {
      StateDict state = state_of(comm.rank(), ranks, 0);
      load(state, checkpoint("plain"), {}, comm);
      EXPECT_TRUE(equal(*state.at("w").as_sharded_tensor().data,
                        *state_of(comm.rank(), ranks, 1).at("w").as_sharded_tensor().data));
    });
  }
  const auto a = open_checkpoint(checkpoint(), seen_by(std::string(kAutoStrategy)));
  const auto b = open_checkpoint(checkpoint("plain"), seen_by(std::string(kAutoStrategy)));
  EXPECT_TRUE(diff(*a, *b).equal());
  EXPECT_FALSE(diff(*open_checkpoint(checkpoint()), *b).equal());
}

TEST_F(PlannedView, OfEncryptedTensorsNeedsTheKey) {
  std::ofstream(directory_.path() / "key") << std::string(32, 'k');
  const std::string planner = "planner: {kind: encrypted, options: {key_file: '" +
                              (directory_.path() / "key").string() + "'}}";
  save_state(with(planner, "").save);
  EXPECT_THAT(error_of([&] { convert(checkpoint(), checkpoint("plain")); }),
              HasSubstr("key of 32 bytes"));
  ConvertOptions options;
  options.source.planner = with("", planner).load.registered_planner;
  convert(checkpoint(), checkpoint("plain"), options);
  EXPECT_TRUE(
      equal(load_plain_tensors(checkpoint("plain")).at("decoder.w").as_tensor(), part(13, 0)));
}

TEST_F(PlannedView, MakesTensorsOfOtherNamesAndShapesAndObjects) {
  save_state();
  const auto reader = open_checkpoint(checkpoint(), seen_by("halves"));
  EXPECT_EQ(reader->metadata().find_tensor("decoder.norm.half"), nullptr);
  const LoadOptions options = with("", "planner: {kind: halves}").load;
  const StateDict tensors = load_plain_tensors(checkpoint(), options);
  EXPECT_EQ(tensors.size(), 2U);
  EXPECT_TRUE(equal(tensors.at("decoder.w.half").as_tensor(), part(6, 0)));
  EXPECT_EQ(load_objects(checkpoint(), "rng", options).at(0).data, Value(8));
  ConvertOptions convert_options;
  convert_options.source.planner.name = "halves";
  convert(checkpoint(), checkpoint("halves"), convert_options);
  EXPECT_EQ(load_objects(checkpoint("halves"), "rng").at(0).data, Value(8)) << "changed once";
}

TEST_F(PlannedView, HasScalarsAndTensorsWithoutElements) {
  StateDict state = Value::dict();
  state["scale"] = ShardedTensor::whole("scale", Tensor::zeros(DType::kFloat32, {}));
  state["none"] = ShardedTensor::whole("none", Tensor::zeros(DType::kFloat32, {0, 4}));
  state["w"] = ShardedTensor::whole("w", part(2, 1));
  save(state, checkpoint(), with("planner: {kind: int8_weights}", "").save);
  const StateDict tensors =
      load_plain_tensors(checkpoint(), with("", "planner: {kind: int8_weights}").load);
  EXPECT_EQ(tensors.at("scale").as_tensor().shape(), Shape());
  EXPECT_EQ(tensors.at("none").as_tensor().shape(), Shape({0, 4}));
  EXPECT_EQ(tensors.at("none").as_tensor().dtype(), DType::kFloat32);
  EXPECT_TRUE(equal(tensors.at("w").as_tensor(), part(2, 1)));
}

TEST_F(PlannedView, OfAnUnknownPlannerIsAnErrorThatNamesIt) {
  save_state(with("planner: {kind: for_nobody}", "").save);
  const auto named = AllOf(HasSubstr("load planner 'third_party'"), HasSubstr("registers it"),
                           HasSubstr("kind: stored"));
  StateDict state = state_of(0, 1, 0);
  EXPECT_THAT(error_of([&] { load(state, checkpoint()); }), named);
  EXPECT_THAT(error_of([&] { (void)load_plain_tensors(checkpoint()); }), named);
  EXPECT_THAT(error_of([&] { convert(checkpoint(), checkpoint("copy")); }), named);
  load(state, checkpoint(), with("", "planner: {kind: stored}").load);
  EXPECT_TRUE(equal(*state.at("w").as_sharded_tensor().data, part(13, 0)));
  ConvertOptions as_stored;
  as_stored.source.planner.name = kStoredPlanner;
  convert(checkpoint(), checkpoint("copy"), as_stored);
  EXPECT_EQ(open_checkpoint(checkpoint("copy"))->metadata().storage_meta->load_planner,
            "third_party")
      << "a copy of what is stored still needs it";
}

TEST_F(PlannedView, ThatFitsNothingIsAnError) {
  save_state();
  class Elsewhere final : public MCoreLoadPlanner {
    LoadPlan create_local_plan() override {
      LoadPlan plan = MCoreLoadPlanner::create_local_plan();
      for (LoadItem& item : plan) item.tensor.key += ".else";
      return plan;
    }
  };
  class Twice final : public MCoreLoadPlanner {
    std::vector<TensorStorageMetadata> contents(const LoadSetup& setup) const override {
      auto all = setup.metadata.tensors;
      all.push_back(all.front());
      return all;
    }
  };
  register_planner(LoadPlannerEntry{.name = "twice_in_contents", .make = [](const StrategySpec&) {
                                      return std::make_unique<Twice>();
                                    }});
  EXPECT_THAT(error_of([&] { (void)open_checkpoint(checkpoint(), seen_by("twice_in_contents")); }),
              AllOf(HasSubstr("planner 'twice_in_contents'"), HasSubstr("of this name")));
  register_planner(LoadPlannerEntry{.name = "elsewhere", .make = [](const StrategySpec&) {
                                      return std::make_unique<Elsewhere>();
                                    }});
  EXPECT_THAT(error_of([&] { (void)open_checkpoint(checkpoint(), seen_by("elsewhere")); }),
              AllOf(HasSubstr("planner 'elsewhere'"), HasSubstr("which the checkpoint does not")));
  EXPECT_THAT(error_of([&] { (void)open_checkpoint(checkpoint(), seen_by("int_8")); }),
              HasSubstr("no planner 'int_8'"));
}

}  // namespace
}  // namespace dckpt::testing::planned_view_test
