#include <gmock/gmock.h>

#include <list>

#include "mapping/state/value.h"
#include "tests/support/random.h"

namespace dckpt::dict_test {
namespace {

std::vector<Value> keys(const Dict& dict) {
  std::vector<Value> all;
  for (const auto& [key, value] : dict) all.push_back(key);
  return all;
}

TEST(Dict, KeepsTheOrderOfInsertion) {
  Dict dict = {{"b", 1}, {"a", 2}};
  dict.set("b", 3);
  dict["c"] = 4;
  EXPECT_THAT(keys(dict), ::testing::ElementsAre(Value("b"), Value("a"), Value("c")));
  EXPECT_EQ(*dict.find("b"), Value(3));
}

TEST(Dict, EqualNumbersAreOneKeyAndTheFirstStays) {
  Dict dict;
  dict.set(1, "int");
  dict.set(true, "bool");
  dict.set(1.0, "float");
  ASSERT_EQ(dict.size(), 1u);
  EXPECT_TRUE(dict.begin()->first.is_int());
  EXPECT_EQ(*dict.find(1), Value("float"));
  EXPECT_EQ(dict.find("1"), nullptr);
}

TEST(Dict, TuplesAndGlobalsCanBeKeys) {
  const Value types = Value::tuple({Global{"torch", "bfloat16"}, Global{"torch", "float32"}});
  Dict dict;
  for (int i = 0; i < 100; ++i) dict.set(Value::tuple({i, i}), i);
  dict.set(types, "found");
  EXPECT_EQ(*dict.find(Value::tuple({Global{"torch", "bfloat16"}, Global{"torch", "float32"}})),
            Value("found"));
  EXPECT_EQ(*dict.find(Value::tuple({42, 42.0})), Value(42));
}

TEST(Dict, BehavesLikeAListOfPairs) {
  testing::Random random;
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(random.trace(round));
    Dict dict;
    std::list<std::pair<std::int64_t, std::int64_t>> model;
    for (int step = 0; step < 200; ++step) {
      const std::int64_t key = random.between(0, 30);
      const auto known = std::find_if(model.begin(), model.end(),
                                      [&](const auto& item) { return item.first == key; });
      if (random.chance(60)) {
        dict.set(key, step);
        if (known == model.end()) {
          model.emplace_back(key, step);
        } else {
          known->second = step;
        }
      } else {
        EXPECT_EQ(dict.erase(key), known != model.end());
        if (known != model.end()) model.erase(known);
      }
    }
    ASSERT_EQ(dict.size(), model.size());
    auto expected = model.begin();
    for (const auto& [key, value] : dict) {
      EXPECT_EQ(key, Value(expected->first));
      EXPECT_EQ(value, Value(expected->second));
      EXPECT_EQ(dict.find(key), &value);
      ++expected;
    }
  }
}

TEST(Dict, ManyKeysAreFoundInConstantTime) {
  Dict dict;
  for (int i = 0; i < 200'000; ++i) dict.set("key " + std::to_string(i), i);
  for (int i = 0; i < 200'000; ++i) ASSERT_EQ(*dict.find("key " + std::to_string(i)), Value(i));
}

}  // namespace
}  // namespace dckpt::dict_test
