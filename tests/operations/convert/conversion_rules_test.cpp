#include "operations/convert/conversion_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "operations/convert/convert.h"
#include "strategies/registry/registry.h"
#include "tests/support/expect_error.h"

namespace dckpt::conversion_rules_test {
namespace {

using ::testing::HasSubstr;

/// Options that break one rule, with the format that they are for, "" for none.
struct Broken {
  ConvertOptions options;
  std::string format;
  std::string says;
};

std::vector<Broken> broken() {
  const Location pool("pool");
  return {
      {{.source = {.weights = {1}}}, "", "name the other models"},
      {{.source = {.average = {Location("b")}, .weights = {1}}}, "", "needs as many weights"},
      {{.checks = {.round_trip = true}}, "", "a round trip is checked through a map"},
      {{.checks = {.error_on = {FindingCode::kKeysNotLoaded}}}, "", "no findings of the kind"},
      {{.target = {.ranks = 0}}, "", "must be between 1 and 1,000,000, got 0"},
      {{.target = {.ranks = kMaxRanks + 1}}, "", "must be between 1 and"},
      {{.optimizer = {.sharding = OptimizerSharding::kFullyShardedModelSpace,
                      .flattened = FlattenedForm::kBoxes}},
       "",
       "contradicts it"},
      {{.optimizer = {.sharding = OptimizerSharding::kFullyReshardable,
                      .flattened = FlattenedForm::kMegatron}},
       "",
       "is not flattened"},
      {{.target = {.compat = Compat::kMegatron019}}, "zarr", "one form only"},
      {{.optimizer = {.flattened = FlattenedForm::kMegatron}}, "dcp", "not from plain DCP"},
      {{.target = {.ranks = 2}}, "hf", "stores each tensor whole"},
      {{.target = {.ranks = 2}}, "zarr", "stores chunks of one size"},
      {{.workers = {.directory = pool}, .dry_run = true}, "", "a dry run exclude each other"},
      {{.target = {.resume = true}, .workers = {.directory = pool}}, "", "--resume exclude"},
      {{.source = {.map = {.name = "llama"}},
        .checks = {.round_trip = true},
        .workers = {.directory = pool}},
       "",
       "--roundtrip-check exclude"},
  };
}

TEST(ConversionRules, EachIsBrokenByItsOptionsAlone) {
  std::vector<bool> seen(conversion_rules().size());
  for (const Broken& one : broken()) {
    const SaveStrategyEntry* const format =
        one.format.empty() ? nullptr : &find_save_strategy(one.format);
    std::size_t found = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const std::string reason = conversion_rules()[i].broken(one.options, format);
      if (reason.empty()) continue;
      ++found;
      seen[i] = true;
      EXPECT_THAT(reason, HasSubstr(one.says));
    }
    EXPECT_EQ(found, 1U) << one.says;
  }
  EXPECT_THAT(seen, ::testing::Each(true)) << "a rule has no options here that break it";
}

TEST(ConversionRules, AreKeptByTheDefaultsForEveryFormat) {
  require_conversion_rules({}, nullptr);
  for (const SaveStrategyEntry& format : save_strategies()) require_conversion_rules({}, &format);
}

// Nothing is opened before, so the source need not exist.
TEST(ConversionRules, AreCheckedBeforeAnythingIsRead) {
  for (const Broken& one : broken()) {
    if (!one.format.empty()) continue;
    const CheckpointError error =
        testing::error_of([&] { convert("no/such/source", "no/destination", one.options); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << one.says;
    EXPECT_THAT(error.what(), HasSubstr(one.says));
  }
}

}  // namespace
}  // namespace dckpt::conversion_rules_test
