#include "tools/dckpt/render/key_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace dckpt::tool::key_rows_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> folded(std::vector<std::string> keys) {
  std::ranges::sort(keys, natural_less);
  std::vector<std::string> rows;
  for (const KeyRow& row : fold_keys(keys, std::vector<std::string>(keys.size())))
    rows.push_back(row.key);
  return rows;
}

TEST(KeyRows, NumbersAreOrderedByTheirValue) {
  std::vector<std::string> keys = {"layers.10.w", "layers.2.w",  "layers.2",
                                   "layers.w",    "layers.02.w", "layers.1.w"};
  std::ranges::sort(keys, natural_less);
  EXPECT_THAT(keys, ElementsAre("layers.1.w", "layers.2", "layers.02.w", "layers.2.w",
                                "layers.10.w", "layers.w"));
}

TEST(KeyRows, KeysThatDifferInNumbersOnlyAreOneRow) {
  EXPECT_THAT(folded({"h.0.fc1.w", "h.1.fc1.w", "h.10.fc1.w", "h.2.fc1.w", "h.0.fc2.w", "end"}),
              ElementsAre("end", "h.{0,1,2,10}.fc1.w ×4", "h.0.fc2.w"));
  EXPECT_THAT(folded({"rng/shard_0_4", "rng/shard_1_4", "rng/shard_2_4", "rng/shard_3_4"}),
              ElementsAre("rng/shard_{0…3}_4 ×4"));
}

TEST(KeyRows, SeveralNumbersSayWhetherEveryCombinationIsThere) {
  EXPECT_THAT(folded({"l.0.e.0", "l.0.e.1", "l.1.e.0", "l.1.e.1"}),
              ElementsAre("l.{0,1}.e.{0,1} ×4"));
  EXPECT_THAT(folded({"l.0.e.0", "l.0.e.1", "l.1.e.1"}),
              ElementsAre("l.{0,1}.e.{0,1} ×3 (not all of them)"));
}

TEST(KeyRows, ManyNumbersWithGapsAreCounted) {
  std::vector<std::string> keys;
  for (int layer = 0; layer < 20; layer += 2) keys.push_back("l." + std::to_string(layer));
  EXPECT_THAT(folded(keys), ElementsAre("l.{0…18: 10 numbers} ×10"));
}

TEST(KeyRows, WhatTheRowShowsKeepsKeysApart) {
  EXPECT_EQ(fold_keys({"l.0", "l.1", "l.2"}, {"float32", "bfloat16", "float32"}).size(), 2u);
}

TEST(KeyRows, LeadingZerosAndHugeNumbersAreNoNumbers) {
  EXPECT_THAT(folded({"a.01", "a.02"}), ElementsAre("a.01", "a.02"));
  EXPECT_THAT(folded({"a.99999999999999999999999999", "a.1"}),
              ElementsAre("a.1", "a.99999999999999999999999999"));
}

}  // namespace
}  // namespace dckpt::tool::key_rows_test
