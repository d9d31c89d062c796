#include "operations/inspect/stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "dist_checkpointing/open/open.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::stats_test {
namespace {

using ::testing::ElementsAre;
using testing::FakeReader;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Stats, EveryThreadCountAndMemoryGivesTheSame) {
  const auto reader = open_checkpoint(golden("mcore-0.16-fully-reshardable-tp2pp2dp2"));
  const StatsReport one = stats(*reader, {.threads = 1});
  const StatsReport four = stats(*reader, {.threads = 4});
  const StatsReport small = stats(*reader, {.threads = 1, .memory = 64});
  ASSERT_EQ(one.tensors.size(), reader->metadata().tensors.size());
  EXPECT_EQ(one.weights.mean, four.weights.mean);
  EXPECT_EQ(one.weights.squares, four.weights.squares);
  EXPECT_NEAR(one.weights.mean, small.weights.mean, 1e-12);
  EXPECT_NEAR(one.weights.deviation(), small.weights.deviation(), 1e-12);
  EXPECT_THAT(one.findings, IsEmpty());
}

/// Megatron stores the layers as one axis, and Hugging Face in the keys.
TEST(Stats, LayersAreTheSameInTheirAxisAndInTheKeys) {
  FakeReader axis, keys;
  axis.tensor<float>("decoder.layers.w", DType::kFloat32, {2, 3}, {1, 2, 3, 10, 20, 60});
  keys.tensor<float>("decoder.layers.0.w", DType::kFloat32, {3}, {1, 2, 3});
  keys.tensor<float>("decoder.layers.1.w", DType::kFloat32, {3}, {10, 20, 60});
  keys.tensor<float>("optimizer.state.exp_avg.decoder.layers.1.w", DType::kFloat32, {3}, {9, 9, 9});
  for (FakeReader* const reader : {&axis, &keys}) {
    const StatsReport report = stats(reader->write());
    ASSERT_EQ(report.layers.size(), 2U);
    EXPECT_EQ(report.layers[0].stack, "decoder");
    EXPECT_EQ(report.layers[0].elements.mean, 2.0);
    EXPECT_EQ(report.layers[1].layer, 1U);
    EXPECT_EQ(report.layers[1].elements.mean, 30.0);
    EXPECT_EQ(report.weights.mean, 16.0);
  }
}

TEST(Stats, ElementsThatAreNotFiniteAreFound) {
  FakeReader reader;
  reader.tensor<float>("a", DType::kFloat32, {3}, {1, NAN, INFINITY});
  reader.tensor<float>("b", DType::kFloat32, {1}, {1});
  const StatsReport report = stats(reader.write());
  ASSERT_EQ(report.findings.size(), 1U);
  EXPECT_EQ(report.findings[0].code, FindingCode::kNotFinite);
  EXPECT_EQ(report.findings[0].severity, Severity::kError);
  EXPECT_THAT(report.findings[0].keys, ElementsAre("a"));
  EXPECT_THAT(report.findings[0].message, HasSubstr("1 element is NaN and 1 infinite"));
}

TEST(Stats, PastDamageTheTensorsThatCanBeReadHaveThem) {
  const TempDir copy;
  std::filesystem::copy(golden("mcore-0.16-fully-reshardable-tp2pp2dp2"), copy.path(),
                        std::filesystem::copy_options::recursive);
  const StatsReport whole = stats(*open_checkpoint(copy.path()));
  std::filesystem::remove(copy / "__3_0.distcp");
  std::filesystem::resize_file(copy / "common.pt", 100);
  const auto damaged = open_checkpoint(copy.path());
  EXPECT_THAT(testing::error_of([&] { (void)stats(*damaged); }).what(), HasSubstr("__3_0.distcp"));
  for (const int ranks : {1, 3}) {
    run_ranks(ranks, [&](Communicator& comm) {
      const StatsReport left = stats(*damaged, {.past_damage = true}, comm);
      ASSERT_EQ(left.tensors.size(), whole.tensors.size());
      EXPECT_THAT(left.unreadable, Not(IsEmpty()));
      EXPECT_LT(left.unreadable.size(), whole.tensors.size() / 2);
      for (std::size_t i = 0; i < whole.tensors.size(); ++i) {
        const TensorStats& tensor = left.tensors[i];
        const bool is_lost = std::ranges::count(left.unreadable, tensor.key) > 0;
        EXPECT_EQ(is_lost, !tensor.elements) << tensor.key;
        if (!is_lost) {
          EXPECT_EQ(tensor.elements->mean, whole.tensors[i].elements->mean);
        }
      }
    });
  }
}

TEST(Stats, SecondMomentsAreNoOutliers) {
  FakeReader reader;
  reader.tensor<float>("optimizer.state.exp_avg_sq.w", DType::kFloat32, {4}, {0, 0, 0, 9});
  reader.tensor<float>("w", DType::kFloat32, {2}, {-1, 1});
  reader.tensor<float>("optimizer.state.exp_avg_sq.v", DType::kFloat32, {1}, {NAN});
  std::vector<std::string> order;
  for (const TensorStats& tensor : outliers_first(stats(reader.write()).tensors))
    order.push_back(tensor.key);
  EXPECT_THAT(order,
              ElementsAre("optimizer.state.exp_avg_sq.v", "w", "optimizer.state.exp_avg_sq.w"));
}

/// Nobody initializes the gaps between parameters.
TEST(Stats, GapsOfBucketsMayHoldAnything) {
  FakeReader reader;
  const std::string buffer =
      "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).";
  for (const char* const end : {"bucket_idx_0.exp_avg_sq", "exp_avg_sq"})
    reader.tensor<float>(buffer + end, DType::kFloat32, {2}, {NAN, -1});
  EXPECT_THAT(stats(reader.write()).findings, IsEmpty());
  EXPECT_TRUE(verify(reader, {.nan = true}).ok());
}

TEST(Stats, AnImpossibleOptimizerIsFound) {
  FakeReader reader;
  reader.tensor<float>("optimizer.state.exp_avg.w", DType::kFloat32, {2}, {-1, 1});
  reader.tensor<float>("optimizer.state.exp_avg_sq.w", DType::kFloat32, {2}, {1, -1e-9F});
  reader.tensor<float>("optim.state.v.step", DType::kFloat32, {}, {10});
  reader.tensor<float>("optim.state.w.step", DType::kFloat32, {}, {12});
  reader.common(Value::dict(
      {{"optimizer", Value::dict({{"param_groups",
                                   Value::list({Value::dict({{"step", 11}, {"lr", 0.1}})})}})}}));
  const StatsReport report = stats(reader.write());
  ASSERT_EQ(report.findings.size(), 2U);
  EXPECT_THAT(report.findings[0].keys, ElementsAre("optimizer.state.exp_avg_sq.w"));
  EXPECT_EQ(report.findings[1].severity, Severity::kWarning);
  EXPECT_THAT(report.findings[1].message,
              HasSubstr("differ: 10 in 'optim.state.v.step', 12 in 'optim.state.w.step'"));
  // A part of the tensors is not compared with the common state.
  EXPECT_THAT(stats(reader, {.keys = {.include = {"*.v.step"}}}).findings, IsEmpty());
}

TEST(Stats, ElementsThatAreNoNumbersHaveNone) {
  FakeReader reader;
  reader.tensor<std::uint8_t>("packed", DType::kFloat4E2M1FNx2, {4}, {1, 2, 3, 4});
  reader.tensor<float>("empty", DType::kFloat32, {0, 3}, {});
  const StatsReport report = stats(reader.write());
  EXPECT_FALSE(report.tensors[0].elements);
  ASSERT_TRUE(report.tensors[1].elements);
  EXPECT_EQ(report.tensors[1].elements->count, 0U);
}

TEST(Stats, VerifyNamesTensorsWithNanOnRequest) {
  FakeReader reader;
  reader.tensor<float>("a", DType::kFloat32, {2}, {1, NAN});
  EXPECT_TRUE(verify(reader.write()).ok());
  const VerifyReport report = verify(reader, {.nan = true});
  ASSERT_EQ(report.problems.size(), 1U);
  EXPECT_THAT(report.problems[0].what(), HasSubstr("of 2 elements, 1 is NaN and 0 infinite"));
  EXPECT_EQ(report.problems[0].context().key, "a");
}

TEST(Stats, APatternThatMatchesNothingIsAnError) {
  FakeReader reader;
  reader.tensor<float>("a", DType::kFloat32, {1}, {1});
  EXPECT_EQ(
      testing::error_of([&] { (void)stats(reader.write(), {.keys = {.include = {"b*"}}}); }).code(),
      ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dckpt::stats_test
