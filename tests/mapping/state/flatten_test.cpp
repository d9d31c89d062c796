#include "mapping/state/flatten.h"

#include <gmock/gmock.h>

#include "mapping/state/sharded_tensor.h"
#include "tests/mapping/state/recorded.h"
#include "tests/support/expect_error.h"

namespace dckpt::flatten_test {
namespace {

using testing::decode;
using testing::encode;
using testing::Json;

Json encode_path(const KeyPath& path) {
  Json json = Json::array();
  for (const PathElement& element : path)
    std::visit([&](const auto& part) { json.push_back(part); }, element);
  return json;
}

void expect_as_recorded(const Value& tree, FlattenRule rule, const Json& expected) {
  if (expected.contains("error")) {
    EXPECT_EQ(testing::error_of([&] { flatten_state_dict(tree, rule); }).message(),
              "duplicated flatten key 'a.b'");
    return;
  }
  Json names = Json::array();
  Json paths = Json::array();
  Json values = Json::array();
  std::vector<std::pair<KeyPath, Value>> leaves;
  for (const FlatLeaf& leaf : flatten_state_dict(tree, rule)) {
    names.push_back(leaf.name);
    paths.push_back(encode_path(leaf.path));
    values.push_back(encode(leaf.value));
    leaves.emplace_back(leaf.path, leaf.value);
  }
  EXPECT_EQ(names, expected["names"]);
  EXPECT_EQ(paths, expected["paths"]);
  EXPECT_EQ(values, expected["values"]);
  EXPECT_EQ(encode(unflatten_state_dict(leaves)), expected["unflattened"]);
}

TEST(FlattenStateDict, AgreesWithTorchThereAndBack) {
  for (const Json& expected : testing::recorded("dcp_trees.json", "flatten")) {
    SCOPED_TRACE(expected["tree"].dump());
    expect_as_recorded(decode(expected["tree"]), FlattenRule::kCurrent, expected["current"]);
    expect_as_recorded(decode(expected["tree"]), FlattenRule::kTorch23, expected["torch23"]);
  }
}

TEST(FlattenStateDict, OpensOrderedDictsFromPickles) {
  Opaque ordered{.callable = Global{"collections", "OrderedDict"}};
  ordered.dict_items = {{"w", 1}, {"b", 2}};
  const auto leaves = flatten_state_dict(Value::dict({{"model", ordered}}));
  ASSERT_EQ(leaves.size(), 2u);
  EXPECT_EQ(leaves[1].name, "model.b");
}

TEST(FlattenStateDict, ShardedTensorsOpenAListAsTensorsDo) {
  const Value shard = ShardedTensor::whole("k", Tensor::zeros(DType::kFloat32, {1}));
  EXPECT_EQ(flatten_state_dict(Value::dict({{"l", Value::list({1, shard})}})).size(), 2u);
}

TEST(FlattenStateDict, RefusesWhatHasNoName) {
  EXPECT_EQ(testing::error_of([] {
              flatten_state_dict(Value::dict({{Value::tuple({1}), 2}}));
            }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(testing::error_of([] { flatten_state_dict(Value::list({1})); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(FlattenStateDict, RefusesDepthBeyondTheLimit) {
  Value deep = 1;
  for (std::size_t i = 0; i <= kMaxTreeDepth; ++i) deep = Value::dict({{"x", std::move(deep)}});
  EXPECT_EQ(testing::error_of([&] { flatten_state_dict(deep); }).code(), ErrorCode::kUnsupported);
}

TEST(FlattenStateDict, KeepsEmptyDictsIfItMust) {
  const Value state = Value::dict({{"a", Value::dict({{"b", Value::dict()}, {"c", 1}})}});
  EXPECT_EQ(flatten_state_dict(state).size(), 1U);
  const auto leaves = flatten_state_dict(state, FlattenRule::kKeepEmpty);
  ASSERT_EQ(leaves.size(), 2U);
  EXPECT_EQ(leaves[0].name, "a.b");
  EXPECT_EQ(leaves[0].value, Value::dict());
}

TEST(ReplaceLeaf, AddsBesideKeysThatAreNotTextAndIntoListsAndDictsOfPositions) {
  Value tree = Value::dict({{"state", Value::dict({{0, Value::dict({{"a", 1}})}})},
                            {"list", Value::list({1})},
                            {"positions", Value::dict({{0, 1}})}});
  replace_leaf(tree, {"state", "0", "b"}, 2);
  replace_leaf(tree, {"list", "1"}, 2);
  replace_leaf(tree, {"positions", std::int64_t{0}}, 2);
  EXPECT_EQ(tree, Value::dict({{"state", Value::dict({{0, Value::dict({{"a", 1}, {"b", 2}})}})},
                               {"list", Value::list({1, 2})},
                               {"positions", Value::dict({{0, 2}})}}));
}

TEST(UnflattenStateDict, TakesPositionsInAnyOrder) {
  std::vector<std::pair<KeyPath, Value>> leaves;
  constexpr std::int64_t kItems = 200'000;
  for (std::int64_t i = kItems; i-- > 0;) leaves.emplace_back(KeyPath{"l", i}, i);
  const Value tree = unflatten_state_dict(leaves);
  ASSERT_EQ(tree.at("l").size(), static_cast<std::size_t>(kItems));
  EXPECT_EQ(tree.at("l").items()[777], Value(777));
}

TEST(UnflattenStateDict, HostilePathsCannotMakeHugeLists) {
  const auto unflatten = [](std::vector<std::pair<KeyPath, Value>> leaves) {
    return testing::error_of([&] { unflatten_state_dict(leaves); }).code();
  };
  EXPECT_EQ(unflatten({{KeyPath{"l", INT64_MAX}, 1}}), ErrorCode::kCorrupt);
  std::vector<std::pair<KeyPath, Value>> many;
  for (int i = 0; i < 20; ++i) many.emplace_back(KeyPath{std::to_string(i), 100'000}, 1);
  EXPECT_EQ(unflatten(many), ErrorCode::kCorrupt);
  EXPECT_EQ(unflatten({{KeyPath{}, 1}}), ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace dckpt::flatten_test
