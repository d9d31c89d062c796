#include "mapping/geometry/parallel_layout.h"

#include <gmock/gmock.h>

#include "tests/support/expect_error.h"

namespace dckpt::parallel_layout_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;

std::string refusal(const ParallelLayout& layout, int ranks, int rank = 0) {
  const CheckpointError error = error_of([&] { (void)parallel_rank(layout, rank, ranks); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  return error.message();
}

TEST(ParallelLayout, RanksCountAsInMegatron) {
  const ParallelRank rank = parallel_rank({.tp = 2, .pp = 2, .dp = 0}, 6, 8);
  EXPECT_EQ(rank.layout.dp, 2);
  EXPECT_EQ((std::vector{rank.tp, rank.dp, rank.pp}), (std::vector{0, 1, 1}));
  const ParallelLayout layout{.tp = 2, .pp = 2, .dp = 2};
  EXPECT_EQ(parallel_groups(layout, "tp"), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(parallel_groups(layout, "dp"), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(parallel_groups(layout, "pp"), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
  EXPECT_THAT(parallel_group(rank, "dp"), ElementsAre(4, 6));
  EXPECT_THAT(parallel_group(rank, "tp-DP"), ElementsAre(4, 5, 6, 7));
}

TEST(ParallelLayout, ExpertsArrangeTheSameRanksAgain) {
  const ParallelRank rank = parallel_rank({.tp = 2, .ep = 2, .dp = 2, .cp = 2, .etp = 1}, 3, 8);
  EXPECT_EQ((std::vector{rank.tp, rank.cp, rank.dp, rank.dp_cp}), (std::vector{1, 1, 0, 1}));
  EXPECT_EQ((std::vector{rank.etp, rank.ep, rank.edp}), (std::vector{0, 1, 1}));
  EXPECT_EQ(rank.copies(), 4);
  EXPECT_EQ(rank.expert_copies(), 4);
  EXPECT_THAT(parallel_group(rank, "dp", RankGrid::kExperts), ElementsAre(1, 3, 5, 7));
}

TEST(ParallelLayout, StagesOfAPipelineHaveConsecutiveLayers) {
  const ParallelRank rank = parallel_rank({.pp = 2}, 1, 2);
  EXPECT_EQ(pipeline_layers(rank, 8).first, 4);
  EXPECT_EQ(pipeline_layers(rank, 8, 1, 2).first, 6);
  EXPECT_EQ(pipeline_layers(rank, 8, 1, 2).count, 2);
  const auto refused = [&](std::int64_t layers, std::int64_t chunks) {
    return error_of([&] { (void)pipeline_layers(rank, layers, 0, chunks); }).message();
  };
  EXPECT_THAT(refused(7, 1), HasSubstr("7 layers do not divide by 2 pipeline stages"));
  EXPECT_THAT(refused(6, 2), HasSubstr("2 pipeline stages of 2 model chunks"));
  EXPECT_THAT(refused(8, 0), HasSubstr("model chunk 0 of 0"));
}

TEST(ParallelLayout, WhatDoesNotFitIsRefusedWithItsSizes) {
  EXPECT_EQ(refusal({.tp = 2, .pp = 2}, 8),
            "the parallel layout tp 2 · cp 1 · dp 1 · pp 2 has 4 ranks, but the job has 8; dp = 0 "
            "takes what the other sizes leave");
  EXPECT_THAT(refusal({.tp = 2, .pp = 2, .dp = 0}, 6),
              HasSubstr("6 ranks do not divide by tp 2 · cp 1 · pp 2 = 4"));
  EXPECT_THAT(refusal({.dp = 0}, 0), HasSubstr("0 ranks do not divide"));
  EXPECT_THAT(refusal({.tp = -2, .dp = -2}, 4), HasSubstr("tp = -2"));
  EXPECT_THAT(refusal({.tp = 65536, .pp = 65536}, 8), HasSubstr("ranks are more than an int"));
  EXPECT_THAT(refusal({.ep = 3, .dp = 4}, 4),
              HasSubstr("4 ranks do not divide by etp 1 · ep 3 · pp 1 = 3"));
  EXPECT_THAT(refusal({.dp = 4}, 4, 4), HasSubstr("rank 4 is out of range (the job has 4 ranks)"));
  EXPECT_THAT(refusal({.dp = 4}, 4, -1), HasSubstr("rank -1"));
}

TEST(ParallelLayout, AnOrderHasEachDimensionOnce) {
  EXPECT_EQ(parallel_rank({.dp = 4, .order = "DP"}, 3, 4).dp, 3);
  EXPECT_THAT(refusal({.dp = 2, .order = "tp-dd"}, 2),
              HasSubstr("'dd' in the order 'tp-dd' is not a parallel dimension"));
  EXPECT_THAT(refusal({.order = ""}, 1), HasSubstr("is not a parallel dimension"));
  EXPECT_THAT(refusal({.dp = 2, .order = "dp-tp-dp"}, 2), HasSubstr("has dp twice"));
  EXPECT_THAT(refusal({.dp = 2, .order = "tp-pp"}, 2), HasSubstr("lacks dp, whose size is 2"));
  EXPECT_THAT(refusal({.cp = 2, .order = "tp-cp-pp"}, 2),
              HasSubstr("lacks dp, whose size for experts is 2"));
  EXPECT_THAT(refusal({.pp = 2, .ep = 2, .dp = 1, .cp = 2, .order = "cp-pp-ep-dp"}, 4),
              HasSubstr("put pp last"));
  EXPECT_THAT(error_of([] { (void)parallel_groups({.dp = 0}, "tp"); }).message(),
              HasSubstr("dp = 0"));
  EXPECT_THAT(error_of([] { (void)parallel_groups({}, "tp-x"); }).message(), HasSubstr("'x'"));
}

}  // namespace
}  // namespace dckpt::parallel_layout_test
