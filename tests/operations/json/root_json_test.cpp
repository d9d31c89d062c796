#include "operations/json/root_fields.h"

#include <gtest/gtest.h>

namespace dckpt::root_json_test {
namespace {

TEST(RootJson, TimesAreInUtcAndNoneIfUnknown) {
  EXPECT_EQ(json_value(UtcTime{1'700'000'000'000'000'000}), Value("2023-11-14T22:13:20Z"));
  EXPECT_TRUE(json_value(UtcTime{0}).is_none());
}

TEST(RootJson, WhatWasNotExaminedHasNoSize) {
  const RootSurvey survey{.iterations = {{.directory = "iter_0000007", .iteration = 7}}};
  const Value json = json_value(ListedRoot{&survey});
  const Value& iteration = json.at("iterations").items().front();
  EXPECT_EQ(iteration.at("state").as_str(), "not-examined");
  for (const char* const field : {"bytes", "files", "saved", "removed_by_policy"})
    EXPECT_TRUE(iteration.at(field).is_none()) << field;
  EXPECT_TRUE(json.at("resume").at("directory").is_none());
}

}  // namespace
}  // namespace dckpt::root_json_test
