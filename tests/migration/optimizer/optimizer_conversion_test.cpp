#include "migration/optimizer/optimizer_conversion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist_checkpointing/open/open.h"
#include "mapping/megatron/optimizer_keys.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::optimizer_conversion_test {
namespace {

using testing::counting;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using testing::golden;
using ::testing::HasSubstr;
using enum OptimizerSharding;

std::vector<std::string> keys_of(const Metadata& metadata) {
  std::vector<std::string> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.push_back(tensor.key);
  return keys;
}

const Value* at(const Value& tree, std::initializer_list<Value> path) {
  const Value* found = &tree;
  for (const Value& step : path) {
    if (found == nullptr) break;
    found = step.is_int() && found->is_list()
                ? &found->items()[static_cast<std::size_t>(step.as_int())]
                : found->as_dict().find(step);
  }
  return found;
}

TEST(OptimizerConversion, FlattenedStateBecomesReshardableAndFlattenedAgain) {
  TempDir directory;
  const auto path = golden("mcore-0.14-flattened-tp2pp2dp2");
  convert(path, directory / "new", {.optimizer = {.sharding = kFullyReshardable}});
  const auto made = open_checkpoint(directory / "new");
  EXPECT_EQ(optimizer_sharding(made->common_state()), "fully_reshardable");
  EXPECT_EQ(*at(made->common_state(), {"content_metadata", "distrib_optim_sharding_type"}),
            Value("fully_reshardable"));
  EXPECT_EQ(
      *at(made->common_state(), {"optimizer", "optimizer", "param_groups", 0, "default_config"}),
      Value(true));
  const Metadata& metadata = made->metadata();
  EXPECT_EQ(metadata.find_tensor("optimizer.state.fp32_param.output_layer.weight"), nullptr);
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    EXPECT_FALSE(tensor.flattened_shape) << tensor.key;
    const std::size_t model =
        tensor.key.starts_with("optimizer.state.") ? tensor.key.find('.', 16) + 1 : 0;
    EXPECT_EQ(tensor.size, metadata.find_tensor(tensor.key.substr(model))->size);
  }

  convert(directory / "new", directory / "back",
          {.optimizer = {.sharding = kFullyShardedModelSpace}});
  const auto back = open_checkpoint(directory / "back");
  EXPECT_TRUE(
      back->metadata().find_tensor("optimizer.state.exp_avg.output_layer.weight")->flattened_shape);
  EXPECT_THAT(diff(*open_checkpoint(path), *back).differences, ::testing::IsEmpty());
}

TEST(OptimizerConversion, ChainsLoseTheirPrefixAndEveryMemberIsChanged) {
  const auto member = [] {
    return Value::dict(
        {{"optimizer", Value::dict({{"param_groups", Value::list({Value::dict({{"step", 3}})})}})},
         {"param_state_sharding_type", "fully_sharded_model_space"}});
  };
  auto source = std::make_unique<FakeReader>();
  source->tensor("w", DType::kFloat32, {2}, counting<float>(2))
      .tensor("chained_0.optimizer.state.fp32_param.w", DType::kFloat32, {2}, counting<float>(2))
      .tensor("chained_1.optimizer.state.momentum_buffer.e", DType::kFloat32, {2},
              counting<float>(2))
      .object("chained_0.optimizer.extra/shard_0_1", Value(1))
      .common(Value::dict({{"optimizer", Value::dict({{0, member()}, {1, member()}})}}))
      .write();
  const auto [made, findings] = with_optimizer_sharding(std::move(source), kFullyReshardable);
  EXPECT_THAT(keys_of(made->metadata()),
              ElementsAre("w", "optimizer.state.param.w", "optimizer.state.momentum_buffer.e"));
  const Value common = made->common_state();
  for (const int i : {0, 1}) {
    EXPECT_EQ(*at(common, {"optimizer", i, "param_state_sharding_type"}),
              Value("fully_reshardable"));
    EXPECT_EQ(*at(common, {"optimizer", i, "optimizer", "param_groups", 0, "step"}), Value(3));
  }
  EXPECT_EQ(*at(common, {"content_metadata", "chained_optim_avoid_prefix"}), Value(true));
  EXPECT_THAT(messages_of(findings), ElementsAre(HasSubstr("became fully_reshardable")));
}

TEST(OptimizerConversion, WhatCannotBeConvertedIsRefused) {
  const auto message = [](const char* sharding, Shape moment = {2}, const char* twin = nullptr) {
    auto source = std::make_unique<FakeReader>();
    source->tensor("w", DType::kFloat32, {2}, counting<float>(2))
        .tensor("optimizer.state.exp_avg.w", DType::kFloat32, moment,
                counting<float>(static_cast<std::size_t>(numel(moment))));
    if (twin != nullptr) source->tensor(twin, DType::kFloat32, {2}, counting<float>(2));
    Value optimizer = Value::dict();
    if (sharding != nullptr) optimizer.mutable_dict().set("param_state_sharding_type", sharding);
    source->common(Value::dict({{"optimizer", optimizer}})).write();
    return std::string(
        error_of([&] { with_optimizer_sharding(std::move(source), kFullyReshardable); }).what());
  };
  EXPECT_THAT(message(nullptr), HasSubstr("no distributed optimizer"));
  EXPECT_THAT(message("dp_reshardable"), HasSubstr("--dist-ckpt-optim-fully-reshardable"));
  EXPECT_THAT(message("fully_sharded_model_space", {3}),
              HasSubstr("'optimizer.state.exp_avg.w' has (3,), 'w' has (2,)"));
  EXPECT_THAT(message("fully_sharded_model_space", {2}, "chained_0.optimizer.state.exp_avg.w"),
              HasSubstr("the same keys"));
  EXPECT_THAT(error_of([] {
                convert("a", "b",
                        {.optimizer = {.sharding = kFullyReshardable,
                                       .flattened = FlattenedForm::kMegatron}});
              }).what(),
              HasSubstr("not flattened"));
}

}  // namespace
}  // namespace dckpt::optimizer_conversion_test
