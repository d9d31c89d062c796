#include "mapping/state/sharded_tree.h"

#include <gmock/gmock.h>

#include "tests/mapping/state/recorded.h"
#include "tests/support/expect_error.h"

namespace dckpt::sharded_tree_test {
namespace {

using testing::decode;
using testing::encode;
using testing::error_of;
using ::testing::HasSubstr;
using testing::Json;

TEST(ShardedTree, SplitsAgreeWithMegatron) {
  for (const Json& expected : testing::recorded("megatron_trees.json", "split")) {
    SCOPED_TRACE(expected["tree"].dump());
    const Value tree = decode(expected["tree"]);
    const SplitState save = split_for_save(tree);
    EXPECT_EQ(Json::array({encode(save.sharded), encode(save.common)}), expected["save"]);
    const LoadRequest load = split_for_load(without_empty_ranges(tree));
    EXPECT_EQ(Json::array({encode(load.sharded), encode(load.local), encode(load.factories)}),
              expected["load"]);
    EXPECT_EQ(encode(tree), expected["tree"]) << "the tree itself has changed";
  }
}

TEST(ShardedTree, FactoryMergesAgreeWithMegatron) {
  int refused = 0;
  for (const Json& expected : testing::recorded("megatron_trees.json", "factory_merge")) {
    SCOPED_TRACE(expected.dump());
    const auto merged = [&] {
      return merge_factories(decode(expected["into"]), decode(expected["factories"]));
    };
    if (expected.contains("result")) {
      EXPECT_EQ(encode(merged()), expected["result"]);
      continue;
    }
    EXPECT_EQ(error_of(merged).code(), ErrorCode::kMismatch);
    ++refused;
  }
  EXPECT_GT(refused, 5);
}

TEST(ShardedTree, PrefixesAgreeWithMegatron) {
  int refused = 0;
  for (const Json& expected : testing::recorded("megatron_trees.json", "prefixes")) {
    SCOPED_TRACE(expected["tree"].dump());
    const Value tree = decode(expected["tree"]);
    Value added = tree;
    add_prefix_for_sharding(added, "p.");
    EXPECT_EQ(encode(added), expected["add"]["result"]);
    Value mapped = tree;
    const std::vector<std::pair<std::string, std::string>> prefixes = {{"a.b.", "first."},
                                                                       {"a.", "second."}};
    apply_prefix_mapping(mapped, prefixes);
    EXPECT_EQ(encode(mapped), expected["map"]["result"]);
    Value replaced = tree;
    if (expected["replace"].contains("result")) {
      replace_prefix_for_sharding(replaced, "a.", "z.");
      EXPECT_EQ(encode(replaced), expected["replace"]["result"]);
    } else {
      EXPECT_EQ(error_of([&] { replace_prefix_for_sharding(replaced, "a.", "z."); }).message(),
                expected["replace"]["message"].get<std::string>());
      EXPECT_EQ(encode(replaced), expected["tree"]) << "half of the keys were replaced";
      ++refused;
    }
    EXPECT_EQ(encode(tree), expected["tree"]) << "a copy has changed";
  }
  EXPECT_GT(refused, 5);
}

TEST(ShardedTree, BuildAndMergeOneTensorOfSeveral) {
  ShardedTensorFactory factory{
      .key = "a", .data = Tensor::zeros(DType::kFloat32, {3}), .replica_id = {0, 1}};
  factory.build = [](const std::string& key, const Tensor& data, const ReplicaId& replica_id,
                     std::optional<FlattenedRange>) {
    return Value::dict(
        {{"level", Value::dict({{"part", ShardedTensor::whole(key + "part", data,
                                                              {.replica_id = replica_id})}})}});
  };
  factory.merge = [](const Value& loaded) { return loaded.at("level").at("part"); };
  const Value state = Value::dict({{"x", 1}, {"w", factory}});

  const SplitState save = split_for_save(state);
  const ShardedTensor& built = save.sharded.at("w").at("level").at("part").as_sharded_tensor();
  EXPECT_EQ(built.key, "apart");
  EXPECT_EQ(built.replica_id, (ReplicaId{0, 1}));

  const LoadRequest request = split_for_load(state);
  EXPECT_EQ(request.factories.at("w").as_factory().data.numel(), 0)
      << "the data must not be kept alive";
  Value loaded = map_leaves(request.sharded, [](const Value& leaf) {
    return Value("read " + leaf.as_sharded_tensor().key);
  });
  loaded = merge(merge(Value::dict({{"x", 1}}), request.local), loaded);
  EXPECT_EQ(merge_factories(std::move(loaded), request.factories).at("w"), Value("read apart"));
}

TEST(ShardedTree, AFactoryFillsATensorOfADeviceOnlyInPlace) {
  float element = 0;
  const Tensor on_device(DType::kFloat32, {1}, {1}, &element, nullptr, {Device::Kind::kCuda, 0});
  const auto merged_into = [&](Value merged) {
    ShardedTensorFactory factory{.key = "w", .data = on_device};
    factory.merge = [merged = std::move(merged)](const Value&) { return merged; };
    return merge_into_factories(Value::dict({{"w", 1}}), Value::dict({{"w", factory}}));
  };
  EXPECT_EQ(merged_into(on_device).at("w").as_factory().data.data(), on_device.data());
  EXPECT_THAT(error_of([&] { merged_into(Tensor::zeros(DType::kFloat32, {1})); }).message(),
              HasSubstr("return the tensor itself"));
}

TEST(ShardedTree, AFactoryFillsNothingThatCannotBeLoadedInto) {
  float element = 7;
  ShardedTensorFactory factory{
      .key = "w",
      .data = Tensor(DType::kFloat32, {3}, {0}, reinterpret_cast<std::byte*>(&element), nullptr)};
  factory.merge = [](const Value&) { return Value(Tensor::zeros(DType::kFloat32, {3})); };
  const CheckpointError error = error_of([&] {
    merge_into_factories(Value::dict({{"w", 1}}), Value::dict({{"w", factory}}));
  });
  EXPECT_EQ(error.context().key, "w");
  EXPECT_THAT(error.message(), HasSubstr("several elements share their memory"));
  EXPECT_EQ(element, 7);
}

TEST(ShardedTree, FactoriesWithoutFunctionsAreRefused) {
  const Value state = Value::dict({{"w", ShardedTensorFactory{.key = "the key"}}});
  EXPECT_EQ(error_of([&] { apply_factories(state); }).context().key, "the key");
  EXPECT_EQ(error_of([&] {
              merge_factories(Value::dict({{"w", 1}}), state);
            })
                .context()
                .key,
            "the key");
}

TEST(ShardedTree, LocalObjectsComeBackUnwrapped) {
  const Value state = Value::dict(
      {{"groups",
        Value::list({Value::dict(
            {{"lr", 0.5}, {"params", LocalNonpersistentObject{Value::list({0, 1})}}})})}});
  EXPECT_EQ(encode(split_for_load(state).local),
            Json::parse(R"({"dict": [["groups", [{"dict": [["params", [0, 1]]]}]]]})"));
  EXPECT_FALSE(split_for_save(state).common.at("groups").items()[0].contains("params"));
}

TEST(ShardedTree, MergeErrorsNameThePlace) {
  const Value factories =
      split_for_load(decode(Json::parse(R"({"dict": [["a", [{"factory": "k"}]]]})"))).factories;
  EXPECT_THAT(error_of([&] {
                merge_factories(decode(Json::parse(R"({"dict": [["a", []]]})")), factories);
              }).message(),
              HasSubstr("Dict key 0 out of bound for list of length 0 (at 'a')"));
}

}  // namespace
}  // namespace dckpt::sharded_tree_test
