#include "operations/convert/reshard.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/validate.h"
#include "tests/support/random.h"

namespace dckpt::reshard_test {
namespace {

using testing::Random;

TensorStorageMetadata stored(std::string key, Shape size, std::vector<Box> chunks,
                             std::optional<Shape> flattened = std::nullopt) {
  TensorStorageMetadata tensor{std::move(key),       {}, size,
                               BoxList(size.size()), {}, std::move(flattened)};
  for (const Box& chunk : chunks) {
    tensor.chunks.push_back(chunk);
    tensor.places.push_back({0, 0, 1});
  }
  return tensor;
}

Metadata checkpoint(std::vector<TensorStorageMetadata> tensors) {
  Metadata metadata;
  metadata.files = {"__0_0.distcp"};
  metadata.tensors = std::move(tensors);
  return metadata;
}

void expect_sound(const Metadata& metadata, const ReshardOptions& options) {
  const GlobalPlan plan = plan_global_save(plan_reshard(metadata, options), {.validate = false});
  ASSERT_EQ(plan.metadata.tensors.size(), metadata.tensors.size());
  for (const TensorStorageMetadata& tensor : plan.metadata.tensors) {
    EXPECT_TRUE(validate_coverage(tensor).empty())
        << tensor.key << ": " << validate_coverage(tensor).front().message;
    EXPECT_EQ(tensor.global_shape(), metadata.find_tensor(tensor.key)->global_shape());
  }
}

TEST(Reshard, CoversEveryTensorForAnyNumberOfRanksAndForm) {
  Random random;
  for (int round = 0; round < 100; ++round) {
    SCOPED_TRACE(random.trace(round));
    const std::int64_t rows = 2 * random.between(1, 40);
    const std::int64_t columns = 3 * random.between(1, 300);
    const std::int64_t cell = rows * columns / 6;
    const std::int64_t cut = random.between(0, cell);
    std::vector<Box> fragments;
    for (std::int64_t i = 0; i < 2; ++i) {
      for (std::int64_t j = 0; j < 3; ++j) {
        fragments.push_back({{i, j, 0}, {1, 1, cut}});
        fragments.push_back({{i, j, cut}, {1, 1, cell - cut}});
      }
    }
    const Metadata metadata = checkpoint(
        {stored("plain", {rows, columns}, {whole(Shape{rows, columns})}),
         stored("flat", {2, 3, cell}, fragments, Shape{rows, columns}),
         stored("scalar", {}, {Box{}}), stored("empty", {0, 5}, {Box{{0, 0}, {0, 5}}}),
         stored("no chunks", {0, 5}, {}), stored("no cells", {1, 1, 0}, {}, Shape{0, 5})});
    const auto ranks = static_cast<int>(random.between(1, 20));
    for (const FlattenedForm form : {FlattenedForm::kBoxes, FlattenedForm::kMegatron}) {
      expect_sound(metadata, {.ranks = std::nullopt, .flattened = form});
      expect_sound(metadata, {.ranks = ranks, .flattened = form});
    }
  }
}

TEST(Reshard, CutsAlongTheFirstAxisThatIsLongEnough) {
  const auto plans = plan_reshard(
      checkpoint({stored("stacked", {2, 64, 512}, {whole(Shape{2, 64, 512})})}), {.ranks = 4});
  ASSERT_EQ(plans.size(), 4U);
  EXPECT_EQ(plans[1].at(0).chunk, (Box{{0, 16, 0}, {2, 16, 512}}));
}

TEST(Reshard, KeepsSmallTensorsWholeAndSpreadsThem) {
  std::vector<TensorStorageMetadata> tensors;
  for (int i = 0; i < 8; ++i)
    tensors.push_back(stored("norm." + std::to_string(i), {256}, {whole(Shape{256})}));
  for (const SavePlan& plan : plan_reshard(checkpoint(tensors), {.ranks = 4}))
    EXPECT_EQ(plan.size(), 2U);
}

TEST(Reshard, CutsNothingIntoTinyPieces) {
  constexpr std::int64_t kFloats = 64 * static_cast<std::int64_t>(kSmallestPart) / 4;
  const Metadata metadata =
      checkpoint({stored("norm", {kFloats}, {whole(Shape{kFloats})}),
                  stored("longer", {kFloats + 1}, {whole(Shape{kFloats + 1})})});
  const std::vector<SavePlan> plans = plan_reshard(metadata, {.ranks = 64});
  std::map<std::string, std::size_t> items;
  for (const SavePlan& plan : plans) {
    for (const WriteItem& item : plan) ++items[item.key];
  }
  EXPECT_EQ(items, (std::map<std::string, std::size_t>{{"norm", 1}, {"longer", 64}}));
}

TEST(Reshard, KeepsTheGridOfFlattenedTensors) {
  const Metadata metadata = checkpoint(
      {stored("flat", {2, 1, 65536}, {{{0, 0, 0}, {1, 1, 65536}}, {{1, 0, 0}, {1, 1, 65536}}},
              Shape{256, 512})});
  const auto plans = plan_reshard(metadata, {.ranks = 4});
  for (const SavePlan& plan : plans) {
    ASSERT_EQ(plan.size(), 1U);
    EXPECT_EQ(plan[0].size, (Shape{2, 1, 65536}));
  }
  EXPECT_EQ(plans[3][0].chunk, (Box{{1, 0, 32768}, {1, 1, 32768}}));
}

TEST(Reshard, WithoutRanksEachChunkStaysWithTheRankOfItsFile) {
  Metadata metadata = checkpoint({stored("w", {4}, {{{0}, {2}}, {{2}, {2}}})});
  metadata.files = {"__7_0.distcp", "__3_1.distcp"};
  metadata.tensors[0].places[1].file = 1;
  const auto plans = plan_reshard(metadata, {});
  ASSERT_EQ(plans.size(), 2U) << "ranks 3 and 7 become 0 and 1";
  EXPECT_EQ(plans[0].at(0).chunk, (Box{{2}, {2}}));
  EXPECT_EQ(plans[1].at(0).chunk, (Box{{0}, {2}}));
}

}  // namespace
}  // namespace dckpt::reshard_test
