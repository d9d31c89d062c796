#include "mapping/state/parallel_shards.h"

#include <gmock/gmock.h>

#include "mapping/state/fused_shards.h"
#include "mapping/state/optimizer_bucket.h"
#include "mapping/state/sharded_tree.h"
#include "tests/support/expect_error.h"

namespace dckpt::parallel_shards_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

Tensor zeros(const Shape& shape) {
  return Tensor::zeros(DType::kFloat32, shape);
}

/// Rank 3 of 8: tp 1, cp 1, dp 0; experts: etp 0, ep 1, edp 1.
const ParallelRank kRank = parallel_rank({.tp = 2, .ep = 2, .dp = 2, .cp = 2, .etp = 1}, 3, 8);

template <typename Describe>
std::string refusal(const Describe& describe) {
  const CheckpointError error = error_of(describe);
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  return error.message();
}

TEST(ParallelShards, LinearLayersAreCutOverTensorParallelRanks) {
  const ShardedTensor column = column_parallel(kRank, "w", zeros({3, 5}), {.layer = {{2, 4}}});
  EXPECT_EQ(column.global_shape, (Shape{4, 6, 5}));
  EXPECT_EQ(column.global_offset, (Shape{2, 3, 0}));
  EXPECT_EQ(column.replica_id, (ReplicaId{0, 0, 1}));
  EXPECT_EQ(column.prepend_axis_num, 1);
  EXPECT_EQ(row_parallel(kRank, "w", zeros({3, 5})).global_offset, (Shape{0, 5}));
  EXPECT_EQ(replicated(kRank, "b", zeros({3})).replica_id, (ReplicaId{0, 1, 1}));
  EXPECT_EQ(column_parallel(kRank, "tied", zeros({3, 5}), {.pipeline_copy = 1}).replica_id,
            (ReplicaId{1, 0, 1}));
  EXPECT_TRUE(vocabulary_parallel(kRank, "embedding", zeros({3, 5})).allow_shape_mismatch);
  EXPECT_EQ(padded_vocabulary(kRank, 50257), 50432);
}

TEST(ParallelShards, ExpertsAreNumberedOverExpertParallelRanks) {
  const ShardedTensor stacked =
      row_parallel(kRank, "fc2", zeros({2, 3, 5}), {.layer = {{2, 4}}, .experts = {{.count = 4}}});
  EXPECT_EQ(stacked.global_shape, (Shape{4, 4, 3, 5}));
  EXPECT_EQ(stacked.global_offset, (Shape{2, 2, 0, 0}));
  EXPECT_EQ(stacked.replica_id, (ReplicaId{0, 0, 1}));
  const ShardedTensor one = row_parallel(
      kRank, "fc2", zeros({3, 5}), {.layer = {{2, 4}}, .experts = {{.count = 4, .number = 3}}});
  EXPECT_EQ(one.global_offset, (Shape{2, 3, 0, 0}));
  EXPECT_EQ(one.prepend_axis_num, 2);
  const ShardedTensor own_key = row_parallel(
      kRank, "fc2.3", zeros({3, 5}), {.experts = {{.count = 4, .number = 3, .in_key = true}}});
  EXPECT_EQ(own_key.global_shape, (Shape{3, 5}));
  EXPECT_EQ(own_key.replica_id, (ReplicaId{0, 0, 1}));
}

TEST(ParallelShards, HalvesOfAGatedTensorAreViewsAndMergeInPlace) {
  const Tensor local = zeros({4, 3});
  const ShardedTensorFactory gated = gated_column_parallel(kRank, "fc1", local);
  const Value halves = apply_factories(Value::dict({{"w", gated}})).at("w");
  ASSERT_EQ(halves.size(), 2U);
  const ShardedTensor& up = halves.at("1").as_sharded_tensor();
  EXPECT_EQ(up.global_shape, (Shape{8, 3}));
  EXPECT_EQ(up.global_offset, (Shape{6, 0}));
  EXPECT_EQ(up.axis_fragmentations, (Shape{4, 1}));
  EXPECT_EQ(up.data->data(), local.data() + 6 * sizeof(float));
  const Value merged = gated.merge(plain_state(halves));
  EXPECT_EQ(merged.as_tensor().data(), local.data());
  EXPECT_EQ(merged.as_tensor().shape(), (Shape{4, 3}));
}

TEST(ParallelShards, ALoadAllocatesAFusedTensorThatHasNoMemory) {
  Tensor query = zeros({2, 3}), value = zeros({1, 3});
  query.data<float>()[5] = 5;
  value.data<float>()[2] = 8;
  const ShardedTensorFactory qkv =
      fused_column_parallel(kRank, "qkv", Tensor::meta(DType::kFloat32, {3, 3}), {2, 1});
  const Value merged = qkv.merge(Value::dict({{"0", query}, {"1", value}}));
  EXPECT_EQ(merged.as_tensor().shape(), (Shape{3, 3}));
  EXPECT_EQ(merged.as_tensor().data<float>()[5], 5);
  EXPECT_EQ(merged.as_tensor().data<float>()[8], 8);
}

TEST(ParallelShards, SizesThatDoNotFitAreRefused) {
  const ParallelTensorOptions of_five{.experts = {{.count = 5}}};
  EXPECT_THAT(refusal([&] {
                row_parallel(kRank, "w", zeros({2, 3, 5}), of_five);
              }),
              HasSubstr("5 experts do not divide by 2 expert parallel ranks"));
  EXPECT_THAT(refusal([&] {
                row_parallel(kRank, "w", zeros({3, 3, 5}), {.experts = {{.count = 4}}});
              }),
              HasSubstr("axis 0 of shape (3, 3, 5) should count the experts of this rank: 2"));
  EXPECT_THAT(refusal([&] {
                row_parallel(kRank, "w", zeros({3, 5}), {.experts = {{.count = 4, .number = 1}}});
              }),
              HasSubstr("expert 1 is not on expert parallel rank 1, which has 2 to 3 of 4"));
  EXPECT_THAT(refusal([&] {
                replicated(kRank, "w", zeros({3}), {.experts = {{.count = 4, .in_key = true}}});
              }),
              HasSubstr("Experts::number"));
  EXPECT_THAT(refusal([&] { row_parallel(kRank, "b", zeros({3})); }),
              HasSubstr("shape (3,) has no axis 1 to cut"));
  EXPECT_THAT(refusal([&] {
                column_parallel(kRank, "w", zeros({3}), {.layer = {{4, 4}}});
              }),
              HasSubstr("layer 4 of 4"));
  EXPECT_THAT(refusal([&] {
                gated_column_parallel(kRank, "w", zeros({3, 2}));
              }),
              HasSubstr("3 rows of a tensor of shape (3, 2) are not two matrices of equal size"));
  EXPECT_THAT(refusal([&] {
                fused_column_parallel(kRank, "w", zeros({3, 2}), {2, 2});
              }),
              HasSubstr("has 3 rows, which are not those of matrices of (2, 2) rows"));
  EXPECT_THAT(refusal([&] { (void)padded_vocabulary(kRank, 5, 0); }), HasSubstr("multiple of 0"));
}

TEST(OptimizerBucket, DataParallelRanksShareEachParameter) {
  const ParallelRank rank = parallel_rank({.tp = 2, .dp = 2}, 3, 4);  // tp 1, dp 1
  Value params = Value::dict({{"a", column_parallel(rank, "a", zeros({5}))},
                              {"b", replicated(rank, "b", zeros({3}))},
                              {"c", row_parallel(rank, "c", zeros({2, 2}))}});
  EXPECT_EQ(owned_elements(rank, params), (FlattenedRange{6, 12}));  // parameters of 5 + 3 + 4
                                                                     // elements
  EXPECT_EQ(owned_elements(rank, params, {.param_alignment = 4, .end_alignment = 8}),
            (FlattenedRange{8, 16}));
  const Tensor state = zeros({6});
  const Value owned = distributed_optimizer_state(rank, params, {{"exp_avg", state}}).at("exp_avg");
  EXPECT_FALSE(owned.contains("a"));
  const ShardedTensor& b = owned.at("b").as_sharded_tensor();
  EXPECT_EQ(b.key, "optimizer.state.exp_avg.b");
  EXPECT_EQ(b.flattened_range, (FlattenedRange{1, 3}));
  EXPECT_EQ(b.replica_id, (ReplicaId{0, 1, 0}));
  EXPECT_EQ(owned.at("c").as_sharded_tensor().data->data(), state.data() + 2 * sizeof(float));

  EXPECT_EQ(distributed_optimizer_state(rank, params, {{"m", zeros({0})}}, {.owned = {{4, 4}}})
                .at("m")
                .size(),
            0U);
  EXPECT_THAT(refusal([&] {
                distributed_optimizer_state(rank, params, {{"m", zeros({5})}});
              }),
              HasSubstr("'m' has shape (5,), but the rank owns the elements [6, 12)"));
  EXPECT_THAT(refusal([&] {
                owned_elements(rank, params, {.owned = {{4, 13}}});
              }),
              HasSubstr("[4, 13) of a bucket of 12"));
  EXPECT_THAT(refusal([&] { owned_elements(rank, params, {.param_alignment = 0}); }),
              HasSubstr("at least 1"));
  EXPECT_THAT(refusal([&] { owned_elements(rank, owned); }), HasSubstr("flattened range"));
}

}  // namespace
}  // namespace dckpt::parallel_shards_test
