#include "mapping/state/sharded_object.h"

#include <gtest/gtest.h>

#include "tests/mapping/state/recorded.h"
#include "tests/support/expect_error.h"

namespace dckpt::sharded_object_test {
namespace {

using testing::error_of;
using testing::Json;

Shape shape_of(const Json& json) {
  Shape shape;
  for (const Json& extent : json) shape.push_back(extent.get<std::int64_t>());
  return shape;
}

TEST(ShardedObject, UniqueKeysAgreeWithMegatron) {
  for (const Json& expected : testing::recorded("sharded.json", "unique_keys")) {
    SCOPED_TRACE(expected.dump());
    const std::string unique = expected.value("unique", expected.value("text", ""));
    if (expected.contains("error")) {
      EXPECT_EQ(error_of([&] { ShardedObject::from_unique_key(unique); }).code(),
                ErrorCode::kCorrupt);
      continue;
    }
    const auto object = ShardedObject::from_unique_key(unique);
    EXPECT_EQ(object.key, expected["key"].get<std::string>());
    EXPECT_EQ(object.global_offset, shape_of(expected["offset"]));
    EXPECT_EQ(object.global_shape, shape_of(expected["shape"]));
    EXPECT_FALSE(object.has_data);
    EXPECT_TRUE(object.unique_key() == unique || object.global_shape.back() == -1)
        << object.unique_key();
  }
}

TEST(ShardedObject, KeysMayHoldSlashesAndUnderscores) {
  const ShardedObject object{
      .key = "a/b_c/shard_0_1", .global_shape = {2, 3}, .global_offset = {1, 0}};
  EXPECT_EQ(object.unique_key(), "a/b_c/shard_0_1/shard_1.0_2.3");
  EXPECT_EQ(ShardedObject::from_unique_key(object.unique_key()).key, object.key);
}

TEST(ShardedObject, DamagedUniqueKeysAreRefused) {
  std::string many = "0";
  for (std::size_t i = 0; i < kMaxDims; ++i) many += ".0";
  for (const std::string& text :
       {std::string("a/shard_-1_1"), std::string("a/shard_1_1"),
        std::string("a/shard_0_99999999999999999999"), std::string("a/shard_0_"),
        std::string("a/shard_0_1_2"), std::string("a/shard_0. 1_2.2"), std::string("shard_0_1"),
        "a/shard_" + many + "_" + many}) {
    EXPECT_EQ(error_of([&] { ShardedObject::from_unique_key(text); }).code(), ErrorCode::kCorrupt)
        << text;
  }
}

TEST(ShardedObject, TheCellMustLieInTheGrid) {
  const auto refused = [](Shape shape, Shape offset) {
    const ShardedObject object{
        .key = "k", .global_shape = std::move(shape), .global_offset = std::move(offset)};
    return error_of([&] { object.validate(); }).code() == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused({2}, {2}));
  EXPECT_TRUE(refused({2}, {-1}));
  EXPECT_TRUE(refused({2, 2}, {0}));
  EXPECT_NO_THROW(
      (ShardedObject{.key = "k", .global_shape = {2}, .global_offset = {1}}.validate()));
}

}  // namespace
}  // namespace dckpt::sharded_object_test
