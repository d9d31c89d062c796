#include "mapping/planning/save/global_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "mapping/base/error.h"
#include "mapping/planning/validate.h"
#include "tests/support/random.h"

namespace dckpt::global_plan_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Random;

const GlobalPlanOptions kDcp{.kind = PlannerKind::kDcp};

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

TensorShard replica(TensorShard shard) {
  shard.main_replica = false;
  return shard;
}

SavePlan local(std::vector<LocalShard> shards) {
  return plan_local_save(shards, FlattenedForm::kBoxes);
}

std::vector<std::uint32_t> positions(const std::vector<AssignedItem>& items) {
  std::vector<std::uint32_t> result;
  for (const AssignedItem& item : items) result.push_back(item.item);
  return result;
}

std::string message_of(const std::vector<SavePlan>& plans, GlobalPlanOptions options = {}) {
  try {
    plan_global_save(plans, options);
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    return error.message();
  }
  return "";
}

TEST(GlobalSavePlan, LetsTheLeastLoadedRankWriteWhatSeveralHold) {
  const SavePlan plan =
      local({whole_tensor("a", {100}), whole_tensor("b", {60}), whole_tensor("c", {30})});
  const GlobalPlan global = plan_global_save(std::vector{plan, plan}, kDcp);
  EXPECT_THAT(positions(global.items[0]), ElementsAre(0U));
  EXPECT_THAT(positions(global.items[1]), ElementsAre(1U, 2U));
  EXPECT_EQ(global.metadata.tensors.size(), 3U);
}

TEST(GlobalSavePlan, TheStandardPlannerGivesOutWhatSeveralHoldAfterWhatOneHolds) {
  const std::vector plans{local({whole_tensor("shared", {4}), whole_tensor("own", {4})}),
                          local({whole_tensor("shared", {4})})};
  const auto of_rank_0 = [&](PlannerKind kind) {
    return positions(plan_global_save(plans, {.kind = kind}).items[0]);
  };
  EXPECT_THAT(of_rank_0(PlannerKind::kHyperParallel), ElementsAre(1U));
  EXPECT_THAT(of_rank_0(PlannerKind::kDcp), ElementsAre(0U, 1U));
}

TEST(GlobalSavePlan, LetsTheLowestRankWriteWhenAsked) {
  const SavePlan plan = local({whole_tensor("a", {100}), whole_tensor("b", {60})});
  const GlobalPlan global = plan_global_save(
      std::vector{plan, plan}, {.kind = PlannerKind::kDcp, .dedup = Dedup::kLowestRank});
  EXPECT_THAT(positions(global.items[0]), ElementsAre(0U, 1U));
  EXPECT_THAT(global.items[1], IsEmpty());
}

TEST(GlobalSavePlan, NamesTheRanksOfAMainReplicaThatExistsTwice) {
  const SavePlan plan = local({whole_tensor("a", {4})});
  const std::string message = message_of({plan, plan});
  EXPECT_THAT(message, HasSubstr("'a'"));
  EXPECT_THAT(message, HasSubstr("(on ranks 0, 1)"));
  EXPECT_EQ(message_of({plan, plan}, {.kind = PlannerKind::kDcp, .dedup = Dedup::kOff}), message);
}

TEST(GlobalSavePlan, ReportsAllDisagreementsAtOnce) {
  TensorShard other_dtype = whole_tensor("a", {4});
  other_dtype.properties.dtype = DType::kBFloat16;
  const std::string message = message_of({local({whole_tensor("a", {4}), whole_tensor("b", {2})}),
                                          local({other_dtype, whole_tensor("b", {3})})});
  EXPECT_THAT(message,
              HasSubstr("'a': rank 0 holds a tensor float32 (4,), rank 1 a tensor bfloat16 (4,)"));
  EXPECT_THAT(message, HasSubstr("'b'"));
}

TEST(GlobalSavePlan, RefusesAShapeThatRanksDisagreeOn) {
  EXPECT_THAT(
      message_of({local({shard("w", {4, 2}, {{0, 0}, {2, 2}})}),
                  local({shard("w", {6, 2}, {{2, 0}, {2, 2}})})}),
      HasSubstr("'w': rank 0 holds a tensor float32 (4, 2), rank 1 a tensor float32 (6, 2)"));
}

TEST(GlobalSavePlan, RefusesAFlattenedTensorThatIsNoneElsewhere) {
  TensorShard flat = shard("m", {4}, {{0}, {2}});
  flat.range = TensorShard::Range{0, 2};
  const std::vector<SavePlan> plans{local({shard("m", {4}, {{2}, {2}})}), local({flat})};
  EXPECT_THAT(
      message_of(plans),
      HasSubstr(
          "'m': rank 0 holds a tensor float32 (4,), rank 1 a tensor float32 (4,) (flattened)"));
  EXPECT_EQ(message_of(plans, kDcp), "") << "for DCP both are boxes";
}

TEST(GlobalSavePlan, RefusesOtherGridsInMegatronsFlattenedForm) {
  const auto flat = [](std::int64_t offset, std::int64_t length, std::int64_t pieces) {
    TensorShard part = shard("m", {8}, {{offset}, {length}});
    part.range = TensorShard::Range{0, length};
    part.fragmentation = Shape{pieces};
    return plan_local_save(std::vector<LocalShard>{part}, FlattenedForm::kMegatron);
  };
  EXPECT_THAT(
      message_of({flat(0, 4, 2), flat(4, 2, 4), flat(6, 2, 4)}),
      HasSubstr("'m': rank 0 holds a tensor float32 (8,) (flattened, stored as (2, 4)), rank 1 a "
                "tensor float32 (8,) (flattened, stored as (4, 2)); Megatron's form"));
}

TEST(GlobalSavePlan, NamesTheRankOfAPartOutsideItsTensor) {
  const SavePlan sound = local({whole_tensor("w", {4})});
  for (const Box& outside : {Box{{-1}, {2}}, Box{{3}, {2}}, Box{{0}, {-4}}, Box{{INT64_MAX}, {2}},
                             Box{{1}, {INT64_MAX}}, Box{{0, 0}, {2, 2}}}) {
    SavePlan plan = sound;
    plan.front().chunk = outside;
    EXPECT_THAT(message_of({sound, plan}),
                HasSubstr("'w': rank 1 holds the part at " + to_string(outside.offsets) + " of " +
                          to_string(outside.sizes) + ", which is not inside the shape (4,)"));
    EXPECT_THAT(message_of({plan}, {.kind = PlannerKind::kDcp, .validate = false}),
                HasSubstr("'w': rank 0 holds"));
  }
}

TEST(GlobalSavePlan, RefusesATensorHereAndAnObjectThere) {
  EXPECT_THAT(message_of({local({whole_tensor("a", {4})}), local({ObjectShard{"a", 10, true, 0}})}),
              HasSubstr("an object"));
}

TEST(GlobalSavePlan, RefusesTheSameShardTwiceOnOneRank) {
  EXPECT_THAT(message_of({local({whole_tensor("a", {4}), whole_tensor("a", {4})})}, kDcp),
              HasSubstr("(on rank 0)"));
}

TEST(GlobalSavePlan, TakesPartsWithoutElementsAnyNumberOfTimes) {
  const TensorShard nothing = shard("w", {4}, {{4}, {0}});
  const GlobalPlan global = plan_global_save(
      std::vector{local({whole_tensor("w", {4})}), local({nothing, nothing})}, kDcp);
  EXPECT_EQ(global.metadata.tensors.front().chunks.size(), 2U) << "kept once";
}

TEST(GlobalSavePlan, StoresNoPartWithoutElementsAtTheOffsetOfAnother) {
  const SavePlan plan = local(
      {shard("w", {4}, {{2}, {2}}), shard("w", {4}, {{2}, {0}}), shard("w", {4}, {{0}, {2}})});
  const GlobalPlan global = plan_global_save(std::vector<SavePlan>{plan}, kDcp);
  EXPECT_THAT(positions(global.items[0]), ElementsAre(0U, 2U));
}

TEST(GlobalSavePlan, StoresNoPartWithoutElementsByMegatronsRule) {
  const SavePlan plan =
      local({whole_tensor("w", {4}), shard("w", {4}, {{4}, {0}}), whole_tensor("nothing", {0, 2})});
  EXPECT_THAT(positions(plan_global_save(std::vector<SavePlan>{plan}).items[0]),
              ElementsAre(0U, 2U));
  EXPECT_THAT(message_of({local({shard("w", {4}, {{4}, {0}})})}),
              HasSubstr("'w': no chunk holds any of the 4 elements"));
}

TEST(GlobalSavePlan, StoresMainReplicasOnlyUnlessReplicasShareTheWork) {
  const TensorShard a = whole_tensor("a", {100});
  const TensorShard b = whole_tensor("b", {90});
  const std::vector<SavePlan> plans{local({a, b}), local({replica(a), replica(b)})};
  EXPECT_THAT(positions(plan_global_save(plans).items[0]), ElementsAre(0U, 1U));
  const GlobalPlan shared = plan_global_save(plans, {.use_replicas = true});
  EXPECT_THAT(positions(shared.items[0]), ElementsAre(0U));
  EXPECT_THAT(positions(shared.items[1]), ElementsAre(1U));
}

TEST(GlobalSavePlan, PlacesPartsWithFewWritersFirst) {
  const TensorShard anyone = whole_tensor("anyone", {10});
  const SavePlan first = local({anyone, whole_tensor("only", {100})});
  const GlobalPlan plan =
      plan_global_save(std::vector{first, local({replica(anyone)})}, {.use_replicas = true});
  EXPECT_THAT(positions(plan.items[0]), ElementsAre(1U));
  EXPECT_THAT(positions(plan.items[1]), ElementsAre(0U));
}

TEST(GlobalSavePlan, DoesNotStoreAPartThatHasNoMainReplica) {
  const std::string message = message_of(
      {local({shard("w", {4}, {{0}, {2}})}), local({replica(shard("w", {4}, {{2}, {2}}))})});
  EXPECT_EQ(message,
            "Invalid access pattern: the ranks' shards do not make a checkpoint:\n"
            "  'w': element (2,) is in no chunk; the chunks hold 2 of 4 elements\n"
            "      hole [2:4], probably cut wrongly along axis 0; only replicas hold it; one of "
            "them needs a replica id of zeros\n"
            "      rank  holds\n"
            "      1     [2:4]  replica, not stored\n"
            "      0     [0:2]");
}

TEST(GlobalSavePlan, ShowsWhoHoldsWhatAroundAnOverlap) {
  const std::string message = message_of({local({shard("w", {4, 8}, {{0, 0}, {3, 8}})}),
                                          local({shard("w", {4, 8}, {{2, 0}, {2, 8}})})});
  EXPECT_THAT(message,
              HasSubstr("chunks [0:3, 0:8] and [2:4, 0:8] overlap: element (2, 0) is in 2 chunks"));
  EXPECT_THAT(message, HasSubstr("overlap [2:3, 0:8], probably cut wrongly along axis 0"));
  EXPECT_THAT(message, HasSubstr("      0     [0:3, 0:8]\n      1     [2:4, 0:8]"));
}

ObjectShard cell(std::int64_t number, std::int64_t grid) {
  return {"rng/shard_" + std::to_string(number) + "_" + std::to_string(grid),
          5,
          true,
          0,
          "rng",
          {grid},
          {number}};
}

TEST(GlobalSavePlan, MissesObjectsOfAGrid) {
  EXPECT_EQ(message_of({local({cell(0, 2)}), local({cell(1, 2)})}), "");
  EXPECT_THAT(message_of({local({cell(0, 4)}), local({cell(3, 4)})}),
              HasSubstr("'rng': 2 of 4 objects are missing, from offset (1,) of the grid (4,)"));
  EXPECT_THAT(message_of({local({cell(0, 1)}), local({whole_tensor("rng", {4})})}),
              HasSubstr("'rng': is the key of a tensor and of objects"));
  EXPECT_THAT(message_of({local({cell(0, 2)}), local({cell(1, 3)})}),
              HasSubstr("its grid is (3,)"));
  ObjectShard copy = cell(0, 1);
  copy.main_replica = false;
  EXPECT_THAT(message_of({local({copy})}), HasSubstr("'rng': 1 of 1 object is missing"));
  EXPECT_THAT(
      message_of({local({cell(0, 2)}), local({cell(0, 2), cell(1, 2)})}),
      HasSubstr("'rng/shard_0_2': the object is a main replica more than once (on ranks 0, 1)"));
  EXPECT_THAT(
      message_of({local({cell(0, 2), cell(0, 2), cell(1, 2)})}),
      HasSubstr("'rng/shard_0_2': the object is a main replica more than once (on rank 0)"));
}

TEST(GlobalSavePlan, SplitsALargeTensorOverItsReplicas) {
  const TensorShard large = whole_tensor("large", {3000, 2048});  // 24 MB
  const std::vector<SavePlan> plans(3, local({whole_tensor("small", {8}), large}));
  const GlobalPlan plan =
      plan_global_save(plans, {.kind = PlannerKind::kDcp, .split_replicas = true});
  const TensorStorageMetadata& stored = *plan.metadata.find_tensor("large");
  EXPECT_EQ(stored.chunks.size(), 2U) << "pieces are not smaller than half of kSplitBytes";
  EXPECT_THAT(validate_coverage(stored), IsEmpty());
  EXPECT_THAT(plan.items[1], ElementsAre(AssignedItem{1, 0, 1500}))
      << "rank 0 has something already";
  const SavePlan final = final_plan(plans[2], plan.items[2]);
  ASSERT_EQ(final.size(), 1U);
  EXPECT_EQ(final[0].chunk, (Box{{1500, 0}, {1500, 2048}}));
  EXPECT_EQ(final[0].source_begin, 1500 * 2048);
  EXPECT_EQ(final[0].nbytes, 1500U * 2048 * 4);
}

TEST(GlobalSavePlan, FindsEqualBoxesInAnyOrder) {
  const auto part = [](std::int64_t i) { return shard("w", {8}, {{2 * i}, {2}}); };
  const GlobalPlan plan =
      plan_global_save(std::vector{local({part(3), part(0)}), local({part(1), part(3)}),
                                   local({part(0), part(2), part(1)})},
                       kDcp);
  EXPECT_THAT(validate_coverage(plan.metadata.tensors.at(0)), IsEmpty());
  EXPECT_EQ(plan.metadata.tensors[0].chunks.size(), 4U);
}

/// Returns ascending cuts from 0 to `extent`, possibly with duplicates.
std::vector<std::int64_t> random_cuts(Random& random, std::int64_t extent) {
  std::vector<std::int64_t> cuts{0, extent};
  for (std::int64_t n = random.between(0, 3); n > 0; --n) cuts.push_back(random.between(0, extent));
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

/// Cuts a matrix into an uneven grid, possibly with empty pieces; if flattened, each piece into
/// ranges.
std::vector<TensorShard> random_parts(Random& random, const std::string& key, const Shape& shape) {
  const bool flattened = random.chance(40);
  const auto rows = random_cuts(random, shape[0]);
  const auto columns = random_cuts(random, shape[1]);
  std::vector<TensorShard> parts;
  for (std::size_t r = 0; r + 1 < rows.size(); ++r) {
    for (std::size_t c = 0; c + 1 < columns.size(); ++c) {
      TensorShard part =
          shard(key, shape,
                {{rows[r], columns[c]}, {rows[r + 1] - rows[r], columns[c + 1] - columns[c]}});
      const auto ends =
          flattened ? random_cuts(random, numel(part.box.sizes)) : std::vector<std::int64_t>{0, 0};
      for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
        if (flattened) part.range = TensorShard::Range{ends[i], ends[i + 1]};
        parts.push_back(part);
      }
    }
  }
  return parts;
}

/// Returns a job in which every rank holds some parts of each tensor, in random order. Each part is
/// held by at least one rank and main on exactly one.
std::vector<SavePlan> random_job(Random& random, int ranks, std::map<std::string, Shape>& shapes) {
  std::vector<std::vector<LocalShard>> held(static_cast<std::size_t>(ranks));
  for (std::int64_t t = random.between(1, 6); t > 0; --t) {
    const std::string key = "t" + std::to_string(t);
    shapes[key] = {random.between(1, 12), random.between(1, 12)};
    for (TensorShard& part : random_parts(random, key, shapes[key])) {
      std::set<std::int64_t> holders;
      for (std::int64_t n = random.between(1, ranks); n > 0; --n)
        holders.insert(random.between(0, ranks - 1));
      part.main_replica = true;
      for (const std::int64_t holder : holders) {
        auto& mine = held[static_cast<std::size_t>(holder)];
        mine.insert(mine.begin() + random.between(0, static_cast<std::int64_t>(mine.size())), part);
        part.main_replica = false;
      }
    }
  }
  std::vector<SavePlan> plans;
  for (auto& shards : held) plans.push_back(local(std::move(shards)));
  return plans;
}

TEST(GlobalSavePlan, WritesEveryElementOnceByARankThatHoldsIt) {
  Random random;
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(random.trace(round));
    std::map<std::string, Shape> shapes;
    const auto plans = random_job(random, static_cast<int>(random.between(1, 8)), shapes);
    const GlobalPlanOptions options{
        .kind = random.chance(50) ? PlannerKind::kMegatron : PlannerKind::kDcp,
        .dedup = random.chance(50) ? Dedup::kBalanced : Dedup::kLowestRank,
        .use_replicas = random.chance(50)};
    const GlobalPlan plan = plan_global_save(plans, options);
    std::map<std::string, std::vector<int>> written;
    for (const auto& [key, shape] : shapes)
      written[key].resize(static_cast<std::size_t>(numel(shape)));
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      const SavePlan final = final_plan(plans[rank], plan.items[rank]);
      ASSERT_EQ(final.size(), plan.slots[rank].size());
      for (std::size_t i = 0; i < final.size(); ++i) {
        const auto& [offsets, sizes] = final[i].chunk;
        const GlobalPlan::Slot& slot = plan.slots[rank][i];
        EXPECT_EQ(plan.metadata.tensors[slot.entry].key, final[i].key);
        EXPECT_EQ(plan.metadata.tensors[slot.entry].chunks[slot.chunk], final[i].chunk);
        for (std::int64_t at = 0; at < numel(sizes); ++at) {
          ++written[final[i].key][static_cast<std::size_t>(
              (offsets[0] + at / sizes[1]) * shapes[final[i].key][1] + offsets[1] + at % sizes[1])];
        }
      }
    }
    for (const auto& [key, counts] : written) EXPECT_THAT(counts, ::testing::Each(1)) << key;
  }
}

TEST(GlobalSavePlan, RefusesHolesAndOverlaps) {
  EXPECT_THAT(message_of({local({shard("hole", {4}, {{0}, {2}})}),
                          local({shard("hole", {4}, {{3}, {1}})})}),
              HasSubstr("'hole'"));
  EXPECT_THAT(message_of({local({shard("twice", {4}, {{0}, {3}})}),
                          local({shard("twice", {4}, {{2}, {2}})})}),
              HasSubstr("'twice'"));
}

TEST(GlobalSavePlan, RefusesFlattenedRangesThatDoNotCoverTheirShardOnce) {
  const auto range = [](std::int64_t begin, std::int64_t end) {
    TensorShard part = shard("m", {4, 6}, {{2, 0}, {2, 6}});
    part.range = TensorShard::Range{begin, end};
    part.fragmentation = Shape{2, 1};
    return part;
  };
  TensorShard first = shard("m", {4, 6}, {{0, 0}, {2, 6}});
  first.range = TensorShard::Range{0, 12};
  first.fragmentation = Shape{2, 1};
  for (const FlattenedForm form : {FlattenedForm::kBoxes, FlattenedForm::kMegatron}) {
    const auto message = [&](const std::vector<TensorShard>& ranges) {
      std::vector<SavePlan> plans{plan_local_save(std::vector<LocalShard>{first}, form)};
      for (const TensorShard& part : ranges)
        plans.push_back(plan_local_save(std::vector<LocalShard>{part}, form));
      return message_of(plans);
    };
    EXPECT_EQ(message({range(0, 5), range(5, 12)}), "");
    EXPECT_EQ(message({range(5, 12), range(5, 5), range(0, 5)}), "");
    EXPECT_THAT(message({range(0, 5), range(6, 12)}), HasSubstr("is in no chunk"));
    EXPECT_THAT(message({range(0, 5), range(5, 11)}), HasSubstr("is in no chunk"));
    EXPECT_THAT(message({range(0, 6), range(5, 12)}), HasSubstr("is in 2 chunks"));
    EXPECT_THAT(message({}), HasSubstr("'m': element "));
  }
}

TEST(GlobalSavePlan, GivesEveryItemItsPlace) {
  const GlobalPlan global = plan_global_save(
      std::vector<SavePlan>{local({shard("w", {4}, {{0}, {2}})}),
                            local({shard("w", {4}, {{2}, {2}}), whole_tensor("v", {1})})});
  const std::vector<std::vector<StorageInfo>> places = {{{0, 0, 10}}, {{1, 5, 20}, {0, 0, 30}}};
  const std::vector<std::vector<std::string>> files = {{"__0_0.distcp"},
                                                       {"__1_0.distcp", "__1_1.distcp"}};
  const Metadata written = written_metadata(global, places, files);
  EXPECT_THAT(written.files, ElementsAre("__0_0.distcp", "__1_0.distcp", "__1_1.distcp"));
  EXPECT_THAT(written.find_tensor("w")->places,
              ElementsAre(StorageInfo{0, 0, 10}, StorageInfo{2, 5, 20}));
  EXPECT_THAT(written.find_tensor("v")->places, ElementsAre(StorageInfo{1, 0, 30}));
}

TEST(GlobalSavePlan, TheStandardPlannerWithoutDedupWritesEveryCopyAndNamesTheLast) {
  std::vector<LocalShard> shards{LocalShard(shard("w", {4}, {{0}, {4}})),
                                 LocalShard(ObjectShard{"step", 3, true, 1})};
  const std::vector<SavePlan> plans(3, plan_local_save(shards, FlattenedForm::kBoxes));
  const GlobalPlan global = plan_global_save(
      plans, {.kind = PlannerKind::kHyperParallel, .dedup = Dedup::kOff, .split_replicas = true});
  for (const auto& items : global.items) EXPECT_EQ(items.size(), 2U) << "each rank writes both";
  ASSERT_EQ(global.metadata.tensors.size(), 1U);
  EXPECT_EQ(global.metadata.tensors[0].chunks.size(), 1U);
  EXPECT_EQ(global.metadata.objects.size(), 1U);
  const std::vector<std::vector<StorageInfo>> places(3, {{0, 0, 10}, {0, 10, 3}});
  const std::vector<std::vector<std::string>> files{{"a"}, {"b"}, {"c"}};
  EXPECT_EQ(written_metadata(global, places, files).tensors[0].places[0], (StorageInfo{2, 0, 10}));
}

}  // namespace
}  // namespace dckpt::global_plan_test
