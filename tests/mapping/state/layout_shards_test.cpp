#include "mapping/state/layout_shards.h"

#include <gmock/gmock.h>

#include <cstring>

#include "tests/support/expect_error.h"

namespace dckpt::layout_shards_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Returns int64 elements 0, 1, 2, …
Tensor counting(const Shape& shape) {
  Tensor tensor = Tensor::empty(DType::kInt64, shape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) std::memcpy(tensor.data() + 8 * i, &i, 8);
  return tensor;
}

TEST(LayoutShards, AnUnevenShardIsOneShardedTensor) {
  const MeshLayout hsdp{DeviceMesh({2, 2}), {Replicate{}, Shard{0}}};
  const auto shards = sharded_tensors_from_layout("w", counting({1, 5}), Shape{3, 5}, hsdp, 3);
  ASSERT_EQ(shards.size(), 1U);
  EXPECT_EQ(shards[0].key, "w");
  EXPECT_EQ(shards[0].global_box(), (Box{{2, 0}, {1, 5}}));
  EXPECT_EQ(shards[0].global_shape, (Shape{3, 5}));
  EXPECT_EQ(shards[0].replica_id, ReplicaId(1));
  EXPECT_TRUE(sharded_tensors_from_layout("w", counting({2, 5}), Shape{3, 5}, hsdp, 0)[0]
                  .replica_id.is_main());
}

TEST(LayoutShards, StridedPiecesAreViewsOfTheLocalTensor) {
  const Tensor local = counting({2, 4});
  const auto shards = sharded_tensors_from_layout("w", local, Shape{2, 8},
                                                  {DeviceMesh({2}), {StridedShard{1, 2}}}, 1);
  ASSERT_EQ(shards.size(), 2U);
  EXPECT_EQ(shards[0].global_box(), (Box{{0, 2}, {2, 2}}));
  EXPECT_EQ(shards[1].global_box(), (Box{{0, 6}, {2, 2}}));
  EXPECT_EQ(shards[1].data->data(), local.data() + 2 * sizeof(std::int64_t));
  EXPECT_TRUE(equal(*shards[1].data, local.narrow(1, 2, 2)));
  for (const ShardedTensor& shard : shards) EXPECT_NO_THROW(shard.validate());
}

TEST(LayoutShards, AnEmptyLocalTensorIsAnEmptyShard) {
  const auto shards = sharded_tensors_from_layout("w", counting({0, 10}), Shape{9, 10},
                                                  {DeviceMesh({4}), {Shard{0}}}, 3);
  ASSERT_EQ(shards.size(), 1U);
  EXPECT_EQ(shards[0].global_box(), (Box{{9, 0}, {0, 10}}));
}

TEST(LayoutShards, ARankOutsideTheMeshHasNone) {
  EXPECT_THAT(
      sharded_tensors_from_layout("w", Tensor(), Shape{9, 10}, {DeviceMesh({4}), {Shard{0}}}, 4),
      IsEmpty());
}

TEST(LayoutShards, ALocalTensorOfAnotherShapeIsRefused) {
  const auto error = error_of([] {
    (void)sharded_tensors_from_layout("w", counting({3, 10}), Shape{9, 10},
                                      {DeviceMesh({4}), {Shard{0}}}, 3);
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message(),
            "the local tensor has shape (3, 10), but [S(0)] on a (4,) mesh gives this rank (0, 10) "
            "of (9, 10)");
  EXPECT_EQ(error.context().key, "w");
  EXPECT_EQ(error.context().rank, 3);
}

TEST(LayoutShards, UnevenFsdp2OverTensorParallelismIsDescribedByItsOrder) {
  // Rank 7 of 4 × 2 holds row 8 of 9, which torch's own placements give to rank 6.
  const auto error = error_of([] {
    (void)sharded_tensors_from_layout("w", counting({1}), Shape{9},
                                      {DeviceMesh({4, 2}), {StridedShard{0, 2}, Shard{0}}}, 7);
  });
  EXPECT_THAT(error.message(), HasSubstr("MeshLayout::order"));
  const auto shards = sharded_tensors_from_layout(
      "w", counting({1}), Shape{9}, {DeviceMesh({4, 2}), {Shard{0}, Shard{0}}, {1, 0}}, 7);
  EXPECT_EQ(shards[0].global_box(), (Box{{8}, {1}}));
}

TEST(LayoutShards, ARankOutsideTheRankListOfATensorMapCannotSave) {
  const TensorMapLayout layout{{2}, {{0}}, {3, 1}};
  const Tensor local = Tensor::zeros(DType::kFloat32, {2});
  EXPECT_EQ(sharded_tensors_from_tensor_map("w", local, Shape{4}, layout, 1).at(0).global_offset,
            (Shape{2}));
  try {
    sharded_tensors_from_tensor_map("w", local, Shape{4}, layout, 2);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.context().key, "w");
    EXPECT_NE(error.message().find("rank_list"), std::string::npos);
  }
}

}  // namespace
}  // namespace dckpt::layout_shards_test
