#include "operations/inspect/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dist_checkpointing/open/open.h"
#include "operations/convert/convert.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::diff_test {
namespace {

using testing::counting;
using testing::FakeReader;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Kind = Difference::Kind;

FakeReader one_tensor(const std::vector<float>& elements, std::vector<Box> boxes = {}) {
  FakeReader reader;
  reader
      .tensor("w", DType::kFloat32, {2, static_cast<std::int64_t>(elements.size() / 2)}, elements,
              std::move(boxes))
      .write();
  return reader;
}

/// Megatron stores the layers of a stack along the first axis.
TEST(Diff, LayersInOneTensorAreCountedOneByOne) {
  FakeReader a, b;
  a.tensor<float>("decoder.layers.w", DType::kFloat32, {3, 2}, {1, 2, 3, 4, 5, 6});
  b.tensor<float>("decoder.layers.w", DType::kFloat32, {3, 2}, {1, 0, 3, 4, 0, 0},
                  {{{0, 0}, {3, 1}}, {{0, 1}, {3, 1}}});
  a.write();
  b.write();
  for (const std::uint64_t memory : {16, 40, 1000}) {  // pieces of 1, 2 and 6 elements
    const DiffReport report = diff(a, b, {.threads = 2, .memory = memory});
    ASSERT_EQ(report.differences.size(), 1U);
    EXPECT_EQ(report.differences[0].elements->count, 3U);
    EXPECT_THAT(report.differences[0].elements->by_layer, ::testing::ElementsAre(1, 0, 2));
  }
  EXPECT_THAT(diff(one_tensor({1, 2}), one_tensor({1, 3})).differences[0].elements->by_layer,
              IsEmpty());
}

TEST(Diff, ShardingIsNoDifference) {
  const FakeReader a = one_tensor(counting<float>(12), {{{0, 0}, {1, 6}}, {{1, 0}, {1, 6}}});
  const FakeReader b = one_tensor(counting<float>(12), {{{0, 0}, {2, 1}}, {{0, 1}, {2, 5}}});
  const DiffReport report = diff(a, b, {.memory = 16});
  EXPECT_TRUE(report.equal());
  EXPECT_EQ(report.tensors_compared, 1u);
  EXPECT_FALSE(report.common_compared);
}

TEST(Diff, TellsWhereAndByHowMuchValuesDiffer) {
  std::vector<float> changed = counting<float>(12);
  changed[8] += 0.5F;
  changed[11] -= 2;
  const DiffReport report =
      diff(one_tensor(counting<float>(12)), one_tensor(changed), {.memory = 32});
  ASSERT_THAT(report.differences, SizeIs(1));
  EXPECT_EQ(report.differences[0].kind, Kind::kValues);
  EXPECT_EQ(report.differences[0].key, "w");
  const ElementDifferences& elements = report.differences[0].elements.value();
  EXPECT_EQ(elements.count, 2u);
  EXPECT_EQ(elements.elements, 12u);
  EXPECT_TRUE(equal(elements.first, Shape{1, 2}));
  EXPECT_EQ(elements.first_a, "8");
  EXPECT_EQ(elements.first_b, "8.5");
  EXPECT_EQ(elements.max_abs, 2.0);
}

TEST(Diff, BitwiseUnlessAToleranceIsGiven) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0.0F, nan, 1.0F, std::numeric_limits<float>::infinity()};
  const std::vector<float> y = {-0.0F, -nan, 1.0F + 1e-6F, std::numeric_limits<float>::infinity()};
  EXPECT_TRUE(diff(one_tensor(x), one_tensor(x)).equal()) << "a NaN equals the same NaN";
  EXPECT_EQ(diff(one_tensor(x), one_tensor(y)).differences.at(0).elements->count, 3u);
  EXPECT_TRUE(diff(one_tensor(x), one_tensor(y), {.atol = 1e-5}).equal());
  EXPECT_EQ(diff(one_tensor(x), one_tensor(y), {.rtol = 1e-9}).differences.at(0).elements->count,
            1u);
}

TEST(Diff, InfinityIsNearNothing) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_FALSE(
      diff(one_tensor({1, inf}), one_tensor({1, 5}), {.rtol = 1e30, .atol = 1e30}).equal());
  EXPECT_FALSE(
      diff(one_tensor({1, 5}), one_tensor({1, inf}), {.rtol = 1e30, .atol = 1e30}).equal());
}

TEST(Diff, IntegersAreComparedExactlyWhateverTheTolerance) {
  const std::int64_t large = std::int64_t{1} << 60;
  FakeReader a, b;
  a.tensor("step", DType::kInt64, {1}, std::vector<std::int64_t>{large}).write();
  b.tensor("step", DType::kInt64, {1}, std::vector<std::int64_t>{large + 1}).write();
  const DiffReport report = diff(a, b, {.rtol = 1.0, .atol = 1.0});
  ASSERT_THAT(report.differences, SizeIs(1));
  EXPECT_EQ(report.differences[0].elements->max_abs, 1.0);
}

TEST(Diff, Bfloat16IsComparedAsNumbers) {
  FakeReader a, b;
  a.tensor("w", DType::kBFloat16, {2}, std::vector<std::uint16_t>{0x3F80, 0x4000}).write();  // 1, 2
  b.tensor("w", DType::kBFloat16, {2}, std::vector<std::uint16_t>{0x3F81, 0x4000})
      .write();  // 1.0078125
  EXPECT_EQ(diff(a, b).differences.at(0).elements->max_abs, 0.0078125);
  EXPECT_TRUE(diff(a, b, {.atol = 0.01}).equal());
}

TEST(Diff, ReportsKeysShapesAndTypes) {
  FakeReader a, b;
  a.tensor("only a", DType::kInt8, {1}, counting<std::int8_t>(1))
      .tensor("shape", DType::kInt8, {2, 3}, counting<std::int8_t>(6))
      .tensor("type", DType::kInt8, {2}, counting<std::int8_t>(2))
      .write();
  b.tensor("type", DType::kUInt8, {2}, counting<std::uint8_t>(2))
      .tensor("shape", DType::kInt8, {3, 2}, counting<std::int8_t>(6))
      .object("only b/shard_0_1", 1)
      .write();
  const DiffReport report = diff(a, b);
  ASSERT_THAT(report.differences, SizeIs(4));
  EXPECT_EQ(report.differences[0].kind, Kind::kShape);
  EXPECT_EQ(report.differences[0].b, "(3, 2)");
  EXPECT_EQ(report.differences[1].kind, Kind::kDType);
  EXPECT_EQ(report.differences[1].a, "int8");
  EXPECT_EQ(report.differences[2].kind, Kind::kOnlyInA);
  EXPECT_EQ(report.differences[3].kind, Kind::kOnlyInB);
  EXPECT_EQ(report.differences[3].key, "only b/shard_0_1");
}

TEST(Diff, FollowsTheCommonStatePathByPath) {
  const auto common = [](double lr, Value betas) {
    return Value::dict(
        {{"iteration", 3},
         {"optimizer",
          Value::dict({{"param_groups",
                        Value::list({Value::dict({{"lr", lr}, {"betas", std::move(betas)}})})}})}});
  };
  FakeReader a, b;
  a.common(common(0.1, Value::tuple({0.9, 0.99}))).write();
  b.common(common(0.2, Value::tuple({0.9, 0.999}))).write();
  const DiffReport report = diff(a, b);
  ASSERT_THAT(report.differences, SizeIs(2));
  EXPECT_EQ(report.differences[0].path, "optimizer.param_groups[0].lr");
  EXPECT_EQ(report.differences[0].a, "0.1");
  EXPECT_EQ(report.differences[1].path, "optimizer.param_groups[0].betas[1]");
  EXPECT_TRUE(diff(a, b, {.atol = 0.2}).equal());
  EXPECT_TRUE(diff(a, b, {.common = false}).equal());
}

TEST(Diff, ASideWithoutACommonStateHasAnEmptyOne) {
  FakeReader with, without, with_empty;
  with.common(Value::dict({{"iteration", 3}})).write();
  without.write();
  with_empty.common(Value::dict()).write();
  const DiffReport report = diff(with, without);
  ASSERT_THAT(report.differences, SizeIs(1));
  EXPECT_EQ(report.differences[0].kind, Kind::kCommon);
  EXPECT_EQ(report.differences[0].path, "iteration");
  EXPECT_FALSE(diff(without, with).equal());
  EXPECT_TRUE(diff(without, with_empty).equal());
}

TEST(Diff, PlainValuesOfDcpAreTheCommonStateOfItsCopies) {
  const TempDir folder;
  const auto dcp = testing::golden("dcp-plain-nested");
  convert(dcp, folder / "copy", {.target = {.strategy = "torch_dist"}});
  const auto original = open_checkpoint(dcp);
  const auto copy = open_checkpoint(folder / "copy");
  ASSERT_FALSE(copy->common_state().is_none());
  EXPECT_TRUE(diff(*original, *copy).equal());
  EXPECT_TRUE(diff(*copy, *original).equal());
  EXPECT_TRUE(diff(*copy, *original).common_compared);
}

TEST(Diff, AGoldenEqualsItself) {
  const auto reader = open_checkpoint(testing::golden("mcore-0.14-synthetic"));
  const DiffReport report = diff(*reader, *reader);
  EXPECT_TRUE(report.equal());
  EXPECT_EQ(report.tensors_compared, reader->metadata().tensors.size());
  EXPECT_TRUE(report.common_compared);
}

}  // namespace
}  // namespace dckpt::diff_test
