#include "dist_checkpointing/save/describe_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/error.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt::describe_state_test {
namespace {

using ::testing::UnorderedElementsAre;

ShardedTensor half(const std::string& key, std::int64_t number) {
  return ShardedTensor::from_rank_offsets(key, Tensor::zeros(DType::kFloat32, {2}),
                                          {{.axis = 0, .rank = number, .count = 2}});
}

TEST(DescribeState, GivesEachKeyOfAPlainDcpDirectoryOnePlaceInTheTree) {
  StateDict state;
  state["step"] = 3;
  state["model"]["layers.0"]["weight"] = half("model.layers.0.weight", 0);
  state["model"]["both"] = Value::list({half("model.both", 0), half("model.both", 1)});
  state["model"]["renamed"] = half("elsewhere", 0);
  state["model"]["cell"] = ShardedObject{.key = "cells"};
  const DescribedState described = describe_state(state, {.compat = Compat::kDcp}, 0);
  EXPECT_THAT(described.paths,
              UnorderedElementsAre(
                  std::pair("step", KeyPath{"step"}),
                  std::pair("model.layers.0.weight", KeyPath{"model", "layers.0", "weight"}),
                  std::pair("model.both", KeyPath{"model", "both"}),
                  std::pair("elsewhere", KeyPath{"elsewhere"}),
                  std::pair("cells/shard_0_1", KeyPath{"cells/shard_0_1"})));
}

TEST(DescribeState, OnlyPlainDcpDirectoriesSayWhichTensorsRequireGradients) {
  ShardedTensor weight = half("weight", 0);
  weight.data->requires_grad = true;
  StateDict state;
  state["weight"] = weight;
  for (const Compat compat : {Compat::kDcp, Compat::kMegatron, Compat::kMegatron019}) {
    EXPECT_EQ(std::get<TensorShard>(describe_state(state, {.compat = compat}, 0).shards.at(0))
                  .properties.requires_grad,
              compat == Compat::kDcp);
  }
}

TEST(DescribeState, MegatronStoresObjectsInListsAndPlainDcpTheObjectsThemselves) {
  StateDict state;
  state["cell"] = ShardedObject{.key = "cells", .data = "content"};
  const auto stored = [&](Compat compat) {
    return load_torch_bytes(describe_state(state, {.compat = compat}, 0).object_bytes.at(0),
                            "cell");
  };
  EXPECT_EQ(stored(Compat::kMegatron), Value::list({"content"}));
  EXPECT_EQ(stored(Compat::kDcp), Value("content"));
}

TEST(DescribeState, KeysOfMegatronHaveNoPlaces) {
  StateDict state;
  state["model"]["weight"] = half("model.weight", 0);
  EXPECT_TRUE(describe_state(state, {}, 0).paths.empty());
}

/// Returns the plan of ranks that hold elements from `cuts[rank]` to `cuts[rank + 1]` of a vector,
/// flattened or not.
GlobalPlan plan_of_cuts(const std::vector<std::int64_t>& cuts, bool flattened, FlattenedForm form) {
  std::vector<SavePlan> plans;
  for (std::size_t rank = 0; rank + 1 < cuts.size(); ++rank) {
    const std::int64_t size = cuts[rank + 1] - cuts[rank];
    const Tensor data = Tensor::zeros(DType::kFloat32, {size});
    StateDict state;
    state["v"] = flattened ? ShardedTensor::from_flat_range("v", data, {size}, {cuts.back()},
                                                            {cuts[rank]}, {0, size})
                           : ShardedTensor::from_box("v", data, {cuts.back()}, {cuts[rank]});
    plans.push_back(plan_local_save(
        describe_state(state, {.compat = Compat::kMegatron019}, static_cast<int>(rank) + 1).shards,
        form));
  }
  return plan_global_save(plans);
}

TEST(DescribeState, UnevenPiecesMakeOneTensorWhateverGridEachOfThemFits) {
  // Of 8 elements the first 4 could be a half and the last an eighth; the 3 between fit no grid. In
  // the second case each piece fits a different grid.
  for (const std::vector<std::int64_t>& cuts :
       {std::vector<std::int64_t>{0, 4, 7, 8}, {0, 4, 6, 8}}) {
    for (const FlattenedForm form : {FlattenedForm::kBoxes, FlattenedForm::kMegatron}) {
      EXPECT_EQ(plan_of_cuts(cuts, false, form).metadata.find_tensor("v")->chunks.size(), 3U);
    }
    EXPECT_EQ(
        plan_of_cuts(cuts, true, FlattenedForm::kBoxes).metadata.find_tensor("v")->chunks.size(),
        3U);
    EXPECT_THROW(plan_of_cuts(cuts, true, FlattenedForm::kMegatron), CheckpointError)
        << "it stores one grid";
  }
}

}  // namespace
}  // namespace dckpt::describe_state_test
