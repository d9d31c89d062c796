#include "mapping/state/optimizer.h"

#include <gmock/gmock.h>

#include "mapping/state/sharded_tree.h"
#include "tests/support/expect_error.h"

namespace dckpt::optimizer_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

/// A model of a column-sharded weight, a replicated bias and a gate that a factory makes, with
/// Adam's state for them.
class OptimizerTest : public ::testing::Test {
 protected:
  OptimizerTest() {
    ShardedTensorFactory gate_factory{.key = "gate", .data = gate};
    gate_factory.build = [](const std::string& key, const Tensor& data, const ReplicaId&,
                            std::optional<FlattenedRange>) {
      return Value(ShardedTensor::whole(key + "_w", data));
    };
    model["layer"]["weight"] =
        ShardedTensor::from_rank_offsets("layer.weight", weight, {{1, 1, 2}});
    model["layer"]["bias"] = ShardedTensor::whole("layer.bias", bias, {.replica_id = 3});
    model["gates"] = Value::list({gate_factory});
    model["iteration"] = 7;
    for (int number = 0; number < 3; ++number) {
      optimizer["state"][number]["exp_avg"] =
          Tensor::zeros(DType::kFloat32, params[static_cast<std::size_t>(number)].shape());
      optimizer["state"][number]["step"] =
          Tensor::zeros(DType::kFloat32, params[static_cast<std::size_t>(number)].shape());
    }
    optimizer["param_groups"] =
        Value::list({Value::dict({{"lr", 0.1}, {"params", Value::list({0, 1, 2})}})});
  }

  Tensor weight = Tensor::zeros(DType::kBFloat16, {4, 2});
  Tensor bias = Tensor::zeros(DType::kBFloat16, {4});
  Tensor gate = Tensor::zeros(DType::kBFloat16, {6});
  std::vector<Tensor> params = {bias, gate, weight};
  Value model;
  Value optimizer;
};

TEST_F(OptimizerTest, ParametersAreFoundByTheirMemory) {
  const ShardedParams found = map_sharded_params(model, params);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found.at(0).as_sharded_tensor().key, "layer.bias");
  EXPECT_EQ(found.at(1).as_factory().key, "gate");
  EXPECT_EQ(found.at(2).as_sharded_tensor().key, "layer.weight");
}

TEST_F(OptimizerTest, TiedParametersHaveTheirFirstNumber) {
  const ShardedParams found = map_sharded_params(model, std::vector{bias, weight, bias});
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found.at(0).as_sharded_tensor().key, "layer.bias");
}

TEST_F(OptimizerTest, OtherTensorsAreNotParameters) {
  EXPECT_TRUE(map_sharded_params(model, std::vector{Tensor::zeros(DType::kBFloat16, {4})}).empty());
}

TEST_F(OptimizerTest, StateIsShardedLikeItsParameter) {
  shard_optimizer_state(optimizer, map_sharded_params(model, params), {"step"});
  const ShardedTensor& average = optimizer.at("state").at(2).at("exp_avg").as_sharded_tensor();
  EXPECT_EQ(average.key, "optimizer.state.exp_avg.layer.weight");
  EXPECT_EQ(average.dtype, DType::kFloat32);
  EXPECT_THAT(average.global_shape, ElementsAre(4, 4));
  EXPECT_THAT(average.global_offset, ElementsAre(0, 2));
  EXPECT_EQ(optimizer.at("state").at(0).at("exp_avg").as_sharded_tensor().replica_id, ReplicaId(3));
  EXPECT_FALSE(optimizer.at("state").at(0).contains("step"));
  const Value built = apply_factories(optimizer);
  EXPECT_EQ(built.at("state").at(1).at("exp_avg").as_sharded_tensor().key,
            "optimizer.state.exp_avg.gate_w");
}

TEST_F(OptimizerTest, ParameterNumbersStayLocal) {
  shard_optimizer_state(optimizer, map_sharded_params(model, params));
  const SplitState split = split_for_save(optimizer);
  EXPECT_EQ(split.common,
            Value::dict({{"param_groups", Value::list({Value::dict({{"lr", 0.1}})})}}));
  EXPECT_EQ(split_for_load(optimizer).local.at("param_groups").items()[0].at("params"),
            Value::list({0, 1, 2}));
}

TEST_F(OptimizerTest, ParametersThatAreNotShardedAreAnError) {
  ShardedParams found = map_sharded_params(model, params);
  found.erase(1);
  const Value before = optimizer;
  EXPECT_EQ(error_of([&] { shard_optimizer_state(optimizer, found); }).message(),
            "Param id 1 does not match any model sharded param");
  EXPECT_EQ(optimizer, before);
  EXPECT_THAT(error_of([&] { shard_optimizer_state(optimizer, {}); }).message(),
              ::testing::HasSubstr("no parameter of the optimizer is in the model's"));
}

TEST_F(OptimizerTest, StateOfAnotherShapeIsAnError) {
  const CheckpointError error = error_of([&] {
    make_sharded_optimizer_tensor(model.at("layer").at("weight"),
                                  Tensor::zeros(DType::kFloat32, {8}), "p");
  });
  EXPECT_EQ(error.message(), "Optimizer shape (8,) does not match model shape (4, 2)");
}

}  // namespace
}  // namespace dckpt::optimizer_test
