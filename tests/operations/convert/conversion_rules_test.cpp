#include "operations/convert/conversion_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "operations/convert/convert.h"
#include "strategies/registry/registry.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/object_store.h"

namespace dckpt::conversion_rules_test {
namespace {

using ::testing::HasSubstr;

const std::filesystem::path kSource = testing::golden("mcore-0.14-flattened-tp2pp2dp2");

/// Returns the opened source, to be written in a format.
Draft draft_for(const std::string& format, const Location& to = Location("no/destination")) {
  Draft draft{.route = watched_route(Location(kSource), to)};
  draft.reader = open_checkpoint(kSource);
  draft.target.format = &find_save_strategy(format);
  return draft;
}

/// Options that break one rule.
struct Broken {
  ConvertOptions options;
  std::string says;
};

std::vector<Broken> broken() {
  const Location pool("pool");
  return {
      {{.source = {.weights = {1}}}, "name the other models"},
      {{.source = {.average = {Location("b")}, .weights = {1}}}, "needs as many weights"},
      {{.checks = {.round_trip = true}}, "a round trip is checked through a map"},
      {{.checks = {.error_on = {FindingCode::kKeysNotLoaded}}}, "no findings of the kind"},
      {{.target = {.ranks = 0}}, "must be between 1 and 1,000,000, got 0"},
      {{.target = {.ranks = kMaxRanks + 1}}, "must be between 1 and"},
      {{.optimizer = {.sharding = OptimizerSharding::kFullyShardedModelSpace,
                      .flattened = FlattenedForm::kBoxes}},
       "contradicts it"},
      {{.optimizer = {.sharding = OptimizerSharding::kFullyReshardable,
                      .flattened = FlattenedForm::kMegatron}},
       "is not flattened"},
      {{.workers = {.directory = pool}, .dry_run = true}, "a dry run exclude each other"},
      {{.target = {.resume = true}, .workers = {.directory = pool}}, "--resume exclude"},
      {{.source = {.map = {.name = "llama"}},
        .checks = {.round_trip = true},
        .workers = {.directory = pool}},
       "--roundtrip-check exclude"},
  };
}

/// A request that breaks one rule about the format, or about the source, a golden checkpoint.
struct BrokenTarget {
  ConvertOptions options;
  std::string format;
  std::string says;
  ErrorCode code = ErrorCode::kInvalidArgument;
  Location to = Location("no/destination");
};

std::vector<BrokenTarget> broken_targets() {
  const Location config(std::filesystem::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/hf");
  const ConvertOptions pooled{.workers = {.directory = Location("no/destination/pool")}};
  const ConvertOptions in_source{.workers = {.directory = Location(kSource)}};
  const Location object(std::make_shared<ObjectStore>(ObjectStore::Pace{}), "out");
  return {
      {{.target = {.compat = Compat::kMegatron019}},
       "zarr",
       "one form only",
       ErrorCode::kUnsupported},
      {{.optimizer = {.flattened = FlattenedForm::kMegatron}}, "dcp", "not from plain DCP"},
      {{.source = {.map = {.name = "none"}}, .target = {.ranks = 2}},
       "hf",
       "stores each tensor whole"},
      {{.target = {.ranks = 2}}, "zarr", "stores chunks of one size"},
      {{}, "hf", "the keys are Megatron's"},
      {{.dry_run = true},
       "zarr",
       "the destination exists",
       ErrorCode::kAlreadyExists,
       Location(kSource)},
      {{.target = {.model_files = config}}, "torch_dist", "takes no files of a model"},
      {{.source = {.map = {.name = "llama"}}, .target = {.model_files = Location(kSource)}},
       "torch_dist",
       "no config.json"},
      {{.target = {.resume = true}},
       "torch_dist",
       "this storage cannot rename",
       ErrorCode::kUnsupported,
       object},
      {pooled, "torch_dist", "is in the destination"},
      {in_source, "torch_dist", "is in the source"},
  };
}

TEST(ConversionRules, EachIsBrokenByItsOptionsAlone) {
  std::vector<bool> seen(conversion_rules().size());
  for (const Broken& one : broken()) {
    std::size_t found = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const std::string reason = conversion_rules()[i](one.options);
      if (reason.empty()) continue;
      ++found;
      seen[i] = true;
      EXPECT_THAT(reason, HasSubstr(one.says));
    }
    EXPECT_EQ(found, 1U) << one.says;
  }
  EXPECT_THAT(seen, ::testing::Each(true)) << "a rule has no options here that break it";
}

TEST(ConversionRules, AboutSourceAndFormatAreEachBrokenByOneRequest) {
  std::vector<bool> seen(target_rules().size());
  for (const BrokenTarget& one : broken_targets()) {
    const Draft draft = draft_for(one.format, one.to);
    const ConversionRequest request = request_of(one.options, draft.route);
    std::size_t found = 0;
    for (std::size_t i = 0; i < seen.size(); ++i) {
      try {
        target_rules()[i](draft, request);
      } catch (const CheckpointError& error) {
        ++found;
        seen[i] = true;
        EXPECT_THAT(error.what(), HasSubstr(one.says));
        EXPECT_EQ(error.code(), one.code) << one.says;
      }
    }
    EXPECT_EQ(found, 1U) << one.says;
  }
  EXPECT_THAT(seen, ::testing::Each(true)) << "a rule has no request here that breaks it";
}

TEST(ConversionRules, AreKeptByTheDefaultsForEveryFormat) {
  require_conversion_rules({});
  for (const SaveStrategyEntry& format : save_strategies()) {
    const Draft draft = draft_for(format.name);
    require_target_rules(draft, request_of({.source = {.map = {.name = "none"}}}, draft.route));
  }
}

// Nothing is opened before, so the source need not exist.
TEST(ConversionRules, AreCheckedBeforeAnythingIsRead) {
  for (const Broken& one : broken()) {
    const CheckpointError error =
        testing::error_of([&] { convert("no/such/source", "no/destination", one.options); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << one.says;
    EXPECT_THAT(error.what(), HasSubstr(one.says));
  }
}

}  // namespace
}  // namespace dckpt::conversion_rules_test
