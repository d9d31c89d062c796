#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"
#include "tests/mapping/state/recorded.h"
#include "tests/support/expect_error.h"

namespace dckpt::value_equality_test {
namespace {

using testing::decode;
using testing::Json;

TEST(ValueEquality, AgreesWithPythonForAllPairs) {
  const Json texts = testing::recorded("python_values.json", "values");
  const Json equal = testing::recorded("python_values.json", "equal");
  std::vector<Value> values;
  for (const Json& text : texts) values.push_back(decode(text));
  int matches = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    for (std::size_t j = 0; j < values.size(); ++j) {
      const bool same = equal[i][j] == 1;
      EXPECT_EQ(values[i] == values[j], same) << texts[i] << " and " << texts[j];
      EXPECT_TRUE(!same || hash_value(values[i]) == hash_value(values[j]))
          << texts[i] << " and " << texts[j];
      matches += same && i != j;
    }
  }
  EXPECT_GT(matches, 40);
}

TEST(ValueEquality, ANanEqualsANanOfTheSameBits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Value(nan), Value(nan));
  EXPECT_FALSE(Value(nan) == Value(std::copysign(nan, -1.0)));
  EXPECT_EQ(Value::list({nan, 1}), Value::list({nan, 1}));
  EXPECT_EQ(Value::dict({{nan, 1}}).at(nan), Value(1));
}

TEST(ValueEquality, TensorsCompareByBytes) {
  const Value zeros = Tensor::zeros(DType::kFloat32, {2});
  EXPECT_EQ(zeros, Value(Tensor::zeros(DType::kFloat32, {2})));
  EXPECT_FALSE(zeros == Value(Tensor::zeros(DType::kFloat32, {2, 1})));
  EXPECT_FALSE(zeros == Value(Tensor::meta(DType::kFloat32, {2})));
  EXPECT_EQ(Value(Tensor::in_file(DType::kFloat32, {2}, {1}, {"f", 8})),
            Value(Tensor::in_file(DType::kFloat32, {2}, {1}, {"f", 8})));
  EXPECT_FALSE(Value(Tensor::in_file(DType::kFloat32, {2}, {1}, {"f", 8})) ==
               Value(Tensor::in_file(DType::kFloat32, {2}, {1}, {"f", 16})));
}

TEST(ValueEquality, ShardedLeavesEqualOnlyThemselves) {
  const ShardedTensor shard = ShardedTensor::whole("k", Tensor::zeros(DType::kFloat32, {1}));
  const Value value = shard;
  const Value copy = value;
  EXPECT_EQ(copy, value);
  EXPECT_FALSE(value == Value(shard));
}

TEST(ValueEquality, OpaqueObjectsCompareByDescription) {
  Opaque space{.callable = Global{"argparse", "Namespace"}};
  space.states = {Value::dict({{"lr", 1}})};
  Opaque other = space;
  EXPECT_EQ(Value(space), Value(other));
  EXPECT_EQ(hash_value(space), hash_value(other));
  other.states[0]["lr"] = 2;
  EXPECT_FALSE(Value(space) == Value(other));
  EXPECT_EQ(Value(Global{"torch", "float32"}), Value(Global{"torch", "float32"}));
}

TEST(ValueEquality, SmallGraphsThatAreHugeTreesAreRefused) {
  const auto pairs = [](Value (*make)(ValueList)) {
    Value value = 1;
    for (int i = 0; i < 60; ++i) value = make({value, value});
    return value;
  };
  EXPECT_EQ(testing::error_of([&] { (void)(pairs(Value::list) == pairs(Value::list)); }).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(testing::error_of([&] { (void)(pairs(Value::tuple) == pairs(Value::tuple)); }).code(),
            ErrorCode::kUnsupported);
  const Value bomb = pairs(Value::tuple);
  EXPECT_EQ(bomb, bomb) << "the same object needs no comparison";
  EXPECT_EQ(hash_value(bomb), hash_value(pairs(Value::tuple)));
}

TEST(ValueEquality, DepthIsLimited) {
  const auto nested = [](int levels) {
    Value value = 1;
    for (; levels > 0; --levels) value = Value::list({std::move(value)});
    return value;
  };
  EXPECT_EQ(nested(1000), nested(1000)) << "what a pickle may hold";
  EXPECT_EQ(testing::error_of([&] { (void)(nested(2000) == nested(2000)); }).code(),
            ErrorCode::kUnsupported);
}

TEST(BigInt, DecimalAgreesWithPython) {
  for (const Json& number : testing::recorded("python_values.json", "numbers")) {
    EXPECT_EQ(decode(number[0]).as_big_int().to_decimal(), number[1].get<std::string>());
  }
}

TEST(BigInt, HugeNumbersAreHexadecimal) {
  Bytes bytes(5000, std::byte{0});
  bytes.back() = std::byte{0x12};
  EXPECT_EQ(BigInt{bytes}.to_decimal(), "0x12" + std::string(9998, '0'));
  bytes.back() = std::byte{0xFF};
  EXPECT_EQ(BigInt{bytes}.to_decimal(), "-0x1" + std::string(9998, '0'));
}

}  // namespace
}  // namespace dckpt::value_equality_test
