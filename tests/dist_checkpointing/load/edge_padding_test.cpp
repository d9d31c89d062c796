#include "dist_checkpointing/load/edge_padding.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/comm/threads.h"
#include "tests/support/temp_dir.h"

namespace dckpt::edge_padding_test {
namespace {

/// Returns element (i, j) of an endless tensor of which (rows, columns) are stored; beyond, the
/// nearest stored element.
float element(std::int64_t i, std::int64_t j, const Shape& stored) {
  return static_cast<float>(std::min(i, stored[0] - 1) * 100 + std::min(j, stored[1] - 1));
}

Tensor part(const Box& box, const Shape& stored) {
  Tensor tensor = Tensor::empty(DType::kFloat32, box.sizes);
  auto* out = reinterpret_cast<float*>(tensor.data());
  for (std::int64_t i = 0; i < box.sizes[0]; ++i) {
    for (std::int64_t j = 0; j < box.sizes[1]; ++j)
      *out++ = element(box.offsets[0] + i, box.offsets[1] + j, stored);
  }
  return tensor;
}

TEST(NearestStored, IsWhatLiesInsideOrTheLastEntry) {
  const Shape shape{10, 4};
  EXPECT_EQ(nearest_stored({{2, 0}, {3, 4}}, shape), (Box{{2, 0}, {3, 4}}));
  EXPECT_EQ(nearest_stored({{8, 0}, {4, 4}}, shape), (Box{{8, 0}, {2, 4}}));
  EXPECT_EQ(nearest_stored({{12, 0}, {4, 6}}, shape), (Box{{9, 0}, {1, 4}}));
  EXPECT_FALSE(nearest_stored({{8, 0}, {0, 4}}, shape));
  EXPECT_FALSE(nearest_stored({{0, 0}, {2, 2}}, Shape{0, 4}));
}

class PaddedLoad : public ::testing::Test {
 protected:
  void SetUp() override {
    save(Value::dict({{"w", ShardedTensor::whole("w", part(whole(stored_), stored_))}}), path_);
  }

  static LoadOptions options() {
    return {.allow_shape_mismatch = {"w"},
            .padding = Padding::kReplicate,
            .validate_access_integrity = false};
  }

  const Shape stored_{5, 3};
  TempDir directory_;
  std::filesystem::path path_ = directory_.path() / "checkpoint";
};

TEST_F(PaddedLoad, EveryRankGoesOnWithTheLastStoredRowWhateverItsPart) {
  for (const std::int64_t rows : {6, 9, 12, 15}) {
    run_ranks(3, [&](Communicator& comm) {  // of 12 rows on 3 ranks, the second has one stored row,
                                            // the third none
      const Box box{{comm.rank() * rows / 3, 0}, {rows / 3, 3}};
      StateDict state =
          Value::dict({{"w", ShardedTensor::from_box("w", Tensor::zeros(DType::kFloat32, box.sizes),
                                                     {rows, 3}, box.offsets)}});
      load(state, path_, options(), comm);
      EXPECT_TRUE(equal(state["w"].as_tensor(), part(box, stored_)))
          << rows << " rows, rank " << comm.rank();
    });
  }
}

TEST_F(PaddedLoad, BothAxesAtOnceIntoAStridedDestination) {
  const Tensor memory = Tensor::zeros(DType::kFloat32, {4, 7});
  const Tensor transposed(DType::kFloat32, Shape{7, 4}, Shape{1, 7}, memory.mutable_data(),
                          memory.owner());
  StateDict state = Value::dict({{"w", ShardedTensor::whole("w", transposed)}});
  load(state, path_, options());
  EXPECT_TRUE(equal(transposed, part({{0, 0}, {7, 4}}, stored_)));
}

TEST_F(PaddedLoad, AFlattenedRangeIsCutFromThePaddedTensor) {
  const Tensor all = part({{3, 0}, {4, 3}}, stored_).view({12});
  StateDict state =
      Value::dict({{"w", ShardedTensor::from_flat_range("w", Tensor::zeros(DType::kFloat32, {6}),
                                                        {4, 3}, {8, 3}, {3, 0}, {4, 10})}});
  load(state, path_, options());
  EXPECT_TRUE(equal(state["w"].as_tensor(), all.narrow(0, 4, 6)));
}

TEST_F(PaddedLoad, PrependedAxesGoOnWithTheLastLayer) {
  StateDict state =
      Value::dict({{"w", ShardedTensor::from_rank_offsets("w", Tensor::zeros(DType::kFloat32, {4}),
                                                          {{.axis = 0, .rank = 6, .count = 7}},
                                                          {.prepend_axis_num = 1})}});
  load(state, path_, options());
  EXPECT_TRUE(equal(state["w"].as_tensor(), part({{6, 0}, {1, 4}}, stored_).view({4})));
}

TEST_F(PaddedLoad, RanksPaddedDifferentlyAllGetZerosBeyondWhatIsStored) {
  run_ranks(4, [&](Communicator& comm) {  // each rank's model pads its vocabulary differently
    const std::int64_t rows = 4 + comm.rank();
    StateDict state =
        Value::dict({{"w", ShardedTensor::whole("w", part(whole(Shape{rows, 3}), {99, 99}),
                                                {.allow_shape_mismatch = true})}});
    load(state, path_, {.allow_truncation = {"w"}, .validate_access_integrity = false}, comm);
    Tensor expected = part(whole(Shape{rows, 3}), stored_);
    if (rows > 5) std::fill_n(reinterpret_cast<float*>(expected.data()) + 15, (rows - 5) * 3, 0.0F);
    EXPECT_TRUE(equal(state["w"].as_tensor(), expected)) << "rank " << comm.rank();
  });
}

}  // namespace
}  // namespace dckpt::edge_padding_test
