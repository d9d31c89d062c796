#include "operations/inspect/compare_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "operations/inspect/extract/render.h"

namespace dckpt::compare_values_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> differences(const Value& a, const Value& b, std::size_t limit = 100) {
  std::vector<std::string> lines;
  for (const ValueDifference& found : compare_values(render(a), render(b), std::nullopt, limit))
    lines.push_back(found.path + ": " + found.a + " | " + found.b);
  return lines;
}

TEST(CompareValues, OrderOfDictsDoesNotMatterKindsDo) {
  EXPECT_THAT(differences(Value::dict({{"a", 1}, {"b", 2}}), Value::dict({{"b", 2}, {"a", 1}})),
              IsEmpty());
  EXPECT_THAT(differences(Value::list({1}), Value::tuple({1})),
              ElementsAre(": [1] | {\"__tuple__\": [1]}"));
  EXPECT_THAT(differences(1, 1.0), ElementsAre(": 1 | 1.0"));
  EXPECT_THAT(differences(1, true), ElementsAre(": 1 | true"));
}

TEST(CompareValues, MembersOnOneSideOnlyAreNamed) {
  EXPECT_THAT(
      differences(Value::dict({{"a", 1}, {"x.y", 2}}), Value::dict({{"a", 1}, {"c", Value()}})),
      ElementsAre("[\"x.y\"]: 2 | ", "c:  | null"));
  EXPECT_THAT(differences(Value::list({1, 2}), Value::list({1})), ElementsAre("[1]: 2 | "));
}

TEST(CompareValues, KeysOfAnyKindAreMatched) {
  const Value a = Value::dict({{1, "x"}, {Value::tuple({1, 2}), "y"}, {"s", "z"}});
  const Value b = Value::dict({{"s", "z"}, {Value::tuple({1, 2}), "changed"}, {1, "x"}});
  EXPECT_THAT(differences(a, b), ElementsAre("[{\"__tuple__\": [1, 2]}]: \"y\" | \"changed\""));
}

TEST(CompareValues, TensorsAreOneValue) {
  const auto tensor = [](float x) {
    return Value(Tensor::from_bytes(DType::kFloat32, {1},
                                    ByteView(reinterpret_cast<const std::byte*>(&x), 4)));
  };
  EXPECT_THAT(differences(Value::dict({{"t", tensor(1)}}), Value::dict({{"t", tensor(1)}})),
              IsEmpty());
  EXPECT_THAT(differences(Value::dict({{"t", tensor(1)}}), Value::dict({{"t", tensor(2)}})),
              SizeIs(1));
}

TEST(CompareValues, AnOrdinaryDictMayLookTagged) {
  EXPECT_THAT(
      differences(Value::dict({{"__dict__", 5}}), Value::dict({{"__dict__", Value::list({1})}})),
      SizeIs(1));
  EXPECT_THAT(differences(Value::dict({{"__dict__", 5}}), Value::dict({{"__dict__", 5}})),
              IsEmpty());
}

TEST(CompareValues, StopsAtTheLimit) {
  EXPECT_THAT(differences(Value::list({1, 2, 3, 4}), Value::list({5, 6, 7, 8}), 2), SizeIs(2));
}

}  // namespace
}  // namespace dckpt::compare_values_test
