#include "mapping/planning/save/local_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/error.h"

namespace dckpt::local_plan_test {
namespace {

TensorShard shard(std::string key, Shape shape, Box box) {
  TensorShard result;
  result.key = std::move(key);
  result.global_shape = std::move(shape);
  result.box = std::move(box);
  return result;
}

TensorShard whole_tensor(std::string key, Shape shape) {
  return shard(std::move(key), shape, whole(shape));
}

SavePlan local(const std::vector<TensorShard>& tensors,
               FlattenedForm form = FlattenedForm::kBoxes) {
  return plan_local_save(std::vector<LocalShard>(tensors.begin(), tensors.end()), form);
}

TEST(LocalSavePlan, AWholeTensorIsOneChunkFromZeroAndAnObjectIsInNoGrid) {
  const SavePlan plan = plan_local_save(
      std::vector<LocalShard>{whole_tensor("w", {4, 6}), ObjectShard{"step", 3, true, 0}},
      FlattenedForm::kBoxes);
  EXPECT_EQ(plan.at(0).chunk, (Box{{0, 0}, {4, 6}}));
  EXPECT_EQ(plan.at(0).nbytes, 96U);
  EXPECT_EQ(plan.at(1).chunk, Box{});
  EXPECT_TRUE(plan.at(1).grid_key.empty());
}

TEST(LocalSavePlan, NamesReplicasAsSuch) {
  TensorShard replica = whole_tensor("w", {4});
  replica.main_replica = false;
  const SavePlan plan = local({whole_tensor("v", {4}), replica});
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_TRUE(plan[0].main_replica);
  EXPECT_FALSE(plan[1].main_replica);
}

TEST(LocalSavePlan, KeepsTheOrderOfTheShards) {
  const SavePlan plan =
      plan_local_save(std::vector<LocalShard>{whole_tensor("a", {4}), ObjectShard{"b", 3, true, 0},
                                              whole_tensor("c", {4})},
                      FlattenedForm::kBoxes);
  ASSERT_EQ(plan.size(), 3U);
  EXPECT_EQ(plan[1].key, "b");
  EXPECT_EQ(plan[1].kind, WriteItem::Kind::kObject);
}

TEST(LocalSavePlan, CutsAFlattenedRangeIntoBoxesOfTheTensor) {
  TensorShard flat = shard("m", {4, 6}, {{2, 0}, {2, 6}});
  flat.range = TensorShard::Range{3, 11};
  const SavePlan plan = local({flat});
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].chunk, (Box{{2, 3}, {1, 3}}));
  EXPECT_EQ(plan[0].source_begin, 0);
  EXPECT_EQ(plan[1].chunk, (Box{{3, 0}, {1, 5}}));
  EXPECT_EQ(plan[1].source_begin, 3);
}

TEST(LocalSavePlan, StoresAFlattenedRangeTheWayMegatronDoes) {
  TensorShard flat = shard("m", {4, 6}, {{2, 0}, {2, 6}});
  flat.range = TensorShard::Range{3, 11};
  flat.fragmentation = Shape{2, 1};
  const SavePlan plan = local({flat}, FlattenedForm::kMegatron);
  ASSERT_EQ(plan.size(), 1U);
  EXPECT_EQ(plan[0].size, (Shape{2, 1, 12}));
  EXPECT_EQ(plan[0].chunk, (Box{{1, 0, 3}, {1, 1, 8}}));
  EXPECT_EQ(plan[0].flattened_shape, (Shape{4, 6}));
}

TEST(LocalSavePlan, RefusesMegatronsFormForAnIrregularGrid) {
  TensorShard flat = shard("m", {5, 6}, {{2, 0}, {3, 6}});
  flat.range = TensorShard::Range{0, 18};
  EXPECT_THROW(local({flat}, FlattenedForm::kMegatron), CheckpointError);
}

TEST(LocalSavePlan, PlansShardsWithoutElements) {
  EXPECT_EQ(local({whole_tensor("empty", {0, 4})}).front().chunk, (Box{{0, 0}, {0, 4}}));
  TensorShard flat = shard("m", {4, 6}, {{2, 0}, {2, 6}});
  flat.range = TensorShard::Range{5, 5};
  flat.fragmentation = Shape{2, 1};
  EXPECT_EQ(local({flat}).front().chunk, (Box{{2, 0}, {0, 0}}));
  EXPECT_EQ(local({flat}, FlattenedForm::kMegatron).front().chunk, (Box{{1, 0, 5}, {1, 1, 0}}));
}

}  // namespace
}  // namespace dckpt::local_plan_test
