#include "configs/policy/own_options.h"

#include <gmock/gmock.h>

#include "configs/policy/strategy_options.h"
#include "mapping/base/error.h"
#include "tests/support/expect_error.h"

namespace dckpt::own_options_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

TEST(OwnOptions, ArePlainTextsByName) {
  OwnOptions options{{"compression", "zstd"}, {"level", "3"}};
  options.set("level", "7");
  EXPECT_THAT(options.names(), ElementsAre("compression", "level"));
  EXPECT_EQ(options.value("level"), "7");
  options.remove("compression");
  EXPECT_FALSE(options.has("compression"));
  EXPECT_EQ(options.value("compression"), "");
}

TEST(OwnOptions, ACopyKeepsItsValues) {
  OwnOptions options{{"level", "3"}};
  const OwnOptions copy = options;
  options.set("level", "7");
  EXPECT_EQ(copy.value("level"), "3");
  EXPECT_NE(copy, options);
}

TEST(OwnOptions, AreTheSameHoweverTheyWereGiven) {
  EXPECT_EQ(OwnOptions::from_yaml("{level: 3}"), (OwnOptions{{"level", "3"}}));
  EXPECT_EQ(OwnOptions::from_yaml("{}"), OwnOptions());
  EXPECT_TRUE(OwnOptions::from_yaml("").empty());
}

TEST(OwnOptions, OfYamlAreAMapping) {
  const CheckpointError list = error_of([] { (void)OwnOptions::from_yaml("[zstd]"); });
  EXPECT_EQ(list.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(list.what(), HasSubstr("{name: value}"));
  EXPECT_EQ(error_of([] { (void)OwnOptions::from_yaml("{level: 3"); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(OwnOptions, ErrorsNameTheirOwner) {
  struct None {};
  for (const auto& [place, owner] : {std::pair{"save.backend.options", "strategy"},
                                     {"load.backend.options", "strategy"},
                                     {"save.planner.options", "planner"},
                                     {"load.planner.options", "planner"}}) {
    const char* const field = place;
    const StrategySpec mine{.name = "mine", .options = {{"levl", "1"}}};
    EXPECT_THAT(error_of([&] { read_options(config::Schema<None>{{}}, mine, field); }).message(),
                HasSubstr("options of " + std::string(owner) + " mine"));
    EXPECT_THAT(error_of([&] { refuse_options(mine, field); }).message(),
                HasSubstr(std::string(owner) + " 'mine' has no options of its own"));
  }
}

}  // namespace
}  // namespace dckpt::own_options_test
