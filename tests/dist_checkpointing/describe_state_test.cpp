#include "dist_checkpointing/describe_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {
namespace {

using ::testing::UnorderedElementsAre;

ShardedTensor half(const std::string& key, std::int64_t number) {
  return ShardedTensor::from_rank_offsets(key, Tensor::zeros(DType::kFloat32, {2}), {{.axis = 0, .rank = number, .count = 2}});
}

TEST(DescribeState, GivesEachKeyOfAPlainDcpDirectoryOnePlaceInTheTree) {
  StateDict state;
  state["step"] = 3;
  state["model"]["layers.0"]["weight"] = half("model.layers.0.weight", 0);
  state["model"]["both"] = Value::list({half("model.both", 0), half("model.both", 1)});
  state["model"]["renamed"] = half("elsewhere", 0);
  state["model"]["cell"] = ShardedObject{.key = "cells"};
  const DescribedState described = describe_state(state, {.compat = Compat::kDcp}, 0);
  EXPECT_THAT(described.paths, UnorderedElementsAre(std::pair("step", KeyPath{"step"}), std::pair("model.layers.0.weight", KeyPath{"model", "layers.0", "weight"}),
                                                    std::pair("model.both", KeyPath{"model", "both"}), std::pair("elsewhere", KeyPath{"elsewhere"}),
                                                    std::pair("cells/shard_0_1", KeyPath{"cells/shard_0_1"})));
}

TEST(DescribeState, KeysOfMegatronHaveNoPlaces) {
  StateDict state;
  state["model"]["weight"] = half("model.weight", 0);
  EXPECT_TRUE(describe_state(state, {}, 0).paths.empty());
}

}  // namespace
}  // namespace dckpt
