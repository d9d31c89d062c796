#include "mapping/planning/save_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TensorShard shard(std::string key, Shape shape, Box box) {
  TensorShard result;
  result.key = std::move(key);
  result.global_shape = std::move(shape);
  result.box = std::move(box);
  return result;
}

TensorShard whole_tensor(std::string key, Shape shape) { return shard(std::move(key), shape, whole(shape)); }

std::string message_of(const std::vector<SavePlan>& plans, GlobalPlanOptions options = {}) {
  try {
    plan_global_save(plans, options);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    return error.message();
  }
  return "";
}

SavePlan local(std::vector<TensorShard> tensors, FlattenedForm form = FlattenedForm::kBoxes) { return plan_local_save(tensors, {}, form, true); }

TEST(LocalSavePlan, LeavesOutWhatIsNotTheMainReplica) {
  TensorShard replica = whole_tensor("w", {4});
  replica.main_replica = false;
  EXPECT_THAT(local({replica}), IsEmpty());
  EXPECT_EQ(plan_local_save({&replica, 1}, {}, FlattenedForm::kBoxes, false).size(), 1U) << "DCP plans every rank's copy and removes duplicates later";
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

TEST(LocalSavePlan, KeepsOneEmptyChunkOfATensorWithoutElements) {
  EXPECT_EQ(local({whole_tensor("empty", {0, 4})}).size(), 1U);
  EXPECT_THAT(local({shard("uneven", {4}, {{4}, {0}})}), IsEmpty()) << "an empty shard of a tensor with elements is nothing to store";
}

TEST(GlobalSavePlan, LetsTheLeastLoadedRankWriteWhatSeveralHold) {
  const SavePlan plan = local({whole_tensor("a", {100}), whole_tensor("b", {60}), whole_tensor("c", {30})});
  const GlobalPlan global = plan_global_save(std::vector{plan, plan});
  EXPECT_THAT(global.items[0], ElementsAre(0U));
  EXPECT_THAT(global.items[1], ElementsAre(1U, 2U));
  EXPECT_EQ(global.metadata.tensors.size(), 3U);
}

TEST(GlobalSavePlan, LetsTheLowestRankWriteWhenAsked) {
  const SavePlan plan = local({whole_tensor("a", {100}), whole_tensor("b", {60})});
  const GlobalPlan global = plan_global_save(std::vector{plan, plan}, {.duplicates = GlobalPlanOptions::Duplicates::kLowestRank});
  EXPECT_THAT(global.items[0], ElementsAre(0U, 1U));
  EXPECT_THAT(global.items[1], IsEmpty());
}

TEST(GlobalSavePlan, NamesTheRanksOfAMainReplicaThatExistsTwice) {
  const SavePlan plan = local({whole_tensor("a", {4})});
  const std::string message = message_of({plan, plan}, {.duplicates = GlobalPlanOptions::Duplicates::kError});
  EXPECT_THAT(message, HasSubstr("'a'"));
  EXPECT_THAT(message, HasSubstr("(0, 1)"));
}

TEST(GlobalSavePlan, ReportsAllDisagreementsAtOnce) {
  TensorShard other_dtype = whole_tensor("a", {4});
  other_dtype.properties.dtype = DType::kBFloat16;
  const std::string message = message_of({local({whole_tensor("a", {4}), whole_tensor("b", {2})}), local({other_dtype, whole_tensor("b", {3})})});
  EXPECT_THAT(message, HasSubstr("'a': rank 0 holds a tensor float32 (4,), rank 1 a tensor bfloat16 (4,)"));
  EXPECT_THAT(message, HasSubstr("'b'"));
}

TEST(GlobalSavePlan, RefusesATensorHereAndAnObjectThere) {
  const ObjectShard object{"a", 10, true, 0};
  EXPECT_THAT(message_of({local({whole_tensor("a", {4})}), plan_local_save({}, {&object, 1}, FlattenedForm::kBoxes, true)}), HasSubstr("an object"));
}

TEST(GlobalSavePlan, RefusesHolesAndOverlaps) {
  EXPECT_THAT(message_of({local({shard("hole", {4}, {{0}, {2}})}), local({shard("hole", {4}, {{3}, {1}})})}), HasSubstr("'hole'"));
  EXPECT_THAT(message_of({local({shard("twice", {4}, {{0}, {3}})}), local({shard("twice", {4}, {{2}, {2}})})}), HasSubstr("'twice'"));
}

TEST(GlobalSavePlan, GivesEveryItemItsPlace) {
  GlobalPlan global = plan_global_save(std::vector{local({shard("w", {4}, {{0}, {2}})}), local({shard("w", {4}, {{2}, {2}}), whole_tensor("v", {1})})});
  const std::vector<std::vector<Place>> places = {{{0, 0, 10}}, {{1, 5, 20}, {0, 0, 30}}};
  const std::vector<std::vector<std::string>> files = {{"__0_0.distcp"}, {"__1_0.distcp", "__1_1.distcp"}};
  set_places(global, places, files);
  EXPECT_THAT(global.metadata.files, ElementsAre("__0_0.distcp", "__1_0.distcp", "__1_1.distcp"));
  EXPECT_THAT(global.metadata.find_tensor("w")->places, ElementsAre(Place{0, 0, 10}, Place{2, 5, 20}));
  EXPECT_THAT(global.metadata.find_tensor("v")->places, ElementsAre(Place{1, 0, 30}));
}

SavePlan plan_with_everything() {
  TensorShard flat = shard("m", {4, 6}, {{2, 0}, {2, 6}});
  flat.range = TensorShard::Range{3, 11};
  flat.fragmentation = Shape{2, 1};
  TensorShard scalar = whole_tensor("scalar", {});
  scalar.properties.requires_grad = true;
  scalar.properties.pin_memory = true;
  scalar.properties.memory_format = TensorProperties::MemoryFormat::kPreserve;
  const ObjectShard object{"rng/shard_0_1", 1U << 20, true, 7};
  return plan_local_save(std::vector{flat, scalar}, {&object, 1}, FlattenedForm::kMegatron, true);
}

TEST(PlanOnTheWire, ComesBackAsItWas) { EXPECT_EQ(decode_plan(encode_plan(plan_with_everything())), plan_with_everything()); }

TEST(PlanOnTheWire, IsRefusedWhenCutShortAnywhere) {
  const Bytes bytes = encode_plan(plan_with_everything());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(decode_plan(ByteView(bytes).first(length)), CheckpointError) << "cut at " << length;
  }
}

TEST(PlanOnTheWire, IsRefusedWithBytesBehindIt) {
  Bytes bytes = encode_plan(plan_with_everything());
  bytes.push_back(std::byte{0});
  EXPECT_THROW(decode_plan(bytes), CheckpointError);
}

TEST(PlanOnTheWire, NeverCrashesOnADamagedByte) {
  const Bytes good = encode_plan(plan_with_everything());
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const int value : {0x00, 0x7F, 0x80, 0xFF}) {
      Bytes bytes = good;
      bytes[at] = static_cast<std::byte>(value);
      try {
        decode_plan(bytes);
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
      }
    }
  }
}

}  // namespace
}  // namespace dckpt
