#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "operations/convert/conversion_findings.h"
#include "operations/convert/convert.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::conversion_steps_test {
namespace {

namespace fs = std::filesystem;

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::Field;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kBuckets = "mcore-0.16-dp-reshardable-tp2pp1dp2";

class ConversionSteps : public ::testing::Test {
 protected:
  std::vector<std::string> names(const std::string& source, ConvertOptions options) {
    return names_of(golden(source), std::move(options));
  }
  std::vector<std::string> names_of(const fs::path& source, ConvertOptions options) {
    options.dry_run = true;
    report_ = convert(source, directory_ / "copy", options);
    std::vector<std::string> names;
    for (const ConversionStep& step : report_.steps) names.push_back(step.name);
    return names;
  }
  std::string of(const std::string& name) const {
    for (const ConversionStep& step : report_.steps) {
      if (step.name == name) return step.does;
    }
    return {};
  }

  TempDir directory_;
  ConvertReport report_;
};

TEST_F(ConversionSteps, ACopyIsSelectedPlannedAndWritten) {
  EXPECT_THAT(names(kBuckets, {.source = {.keys = {.exclude = {"rng*"}}}, .target = {.ranks = 3}}),
              ElementsAre("format", "select", "common state", "plan", "write"));
  EXPECT_EQ(of("format"), "chooses 'torch_dist', as the source has it");
  EXPECT_EQ(of("select"), "takes 23 tensors and 14 objects of 23 tensors and 16 objects");
  EXPECT_THAT(of("plan"), StartsWith("cuts "));
}

TEST_F(ConversionSteps, TheOptimizerChangesBeforeKeysAreSelected) {
  EXPECT_THAT(names(kBuckets, {.target = {.strategy = "fsdp_dtensor"},
                               .optimizer = {.sharding = OptimizerSharding::kFullyReshardable}}),
              ElementsAre("format", "optimizer", "FSDP's keys", "select", "plan", "write"));
  EXPECT_EQ(of("optimizer"), "gives the state of the optimizer the form fully_reshardable");
}

TEST_F(ConversionSteps, AModelLeavesTheRestBehind) {
  EXPECT_THAT(names("mcore-0.15-fully-reshardable-tp2pp2dp2",
                    {.source = {.map = {.name = "none"}},
                     .target = {.strategy = "hf", .rename = {{"decoder.", "layers."}}}}),
              ElementsAre("format", "model only", "select", "rename", "tensors only", "model files",
                          "plan", "write"));
  EXPECT_THAT(of("rename"), "renames keys by 1 rule");
}

TEST_F(ConversionSteps, EveryRemarkBelongsToAStep) {
  for (const char* const format : {"dcp", "hf", "fsdp_dtensor", "torch_dist", "zarr"}) {
    names("mcore-0.15-fully-reshardable-tp2pp2dp2",
          {.source = {.map = {.name = "none"}}, .target = {.strategy = format}});
    std::vector<std::string> notes;
    for (const ConversionStep& step : report_.steps)
      notes.insert(notes.end(), step.notes.begin(), step.notes.end());
    EXPECT_EQ(notes, messages_of(report_.findings)) << format;
    EXPECT_THAT(report_.steps, Each(Field(&ConversionStep::does, Not("")))) << format;
  }
}

TEST_F(ConversionSteps, ARoundTripIsTakenAfterTheSource) {
  EXPECT_THAT(names_of(fs::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/hf",
                       {.source = {.map = {.name = "auto"}}, .checks = {.round_trip = true}}),
              ElementsAre("map", "map back", "round trip", "format", "select", "common state",
                          "model files", "plan", "write"));
  EXPECT_EQ(of("map back"), "gives 26 tensors the keys of the source again, in memory");
  EXPECT_EQ(of("round trip"), "compares 26 tensors with the source: no bit differs");
}

TEST_F(ConversionSteps, TheSourceIsOneIfThereIsSomethingToSayOfIt) {
  const auto steps = names("dcp-hf-safetensors-sharded", {});
  EXPECT_THAT(steps, ElementsAre("source", "format", "select", "tensors only", "model files",
                                 "plan", "write"));
  EXPECT_EQ(of("source"), "reads 'safetensors'");
  EXPECT_THAT(report_.steps.front().notes,
              ElementsAre(StartsWith("4 files with parts of tensors")));
}

TEST_F(ConversionSteps, WhatIsSaidOfAnotherModelBelongsToTheStepThatJoinsIt) {
  names_of(fs::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/hf",
           {.source = {.join = {golden("dcp-hf-safetensors-sharded")}}});
  EXPECT_EQ(report_.steps.front().name, "join");
  EXPECT_THAT(report_.steps.front().notes, Contains(StartsWith("4 files with parts of tensors")));
}

TEST_F(ConversionSteps, FindingsHaveKeysAndCanBeErrors) {
  const char* const source = "mcore-0.15-fully-reshardable-tp2pp2dp2";
  ConvertOptions options{.source = {.map = {.name = "none"}}, .target = {.strategy = "hf"}};
  names(source, options);
  const auto left_out =
      std::ranges::find(report_.findings, FindingCode::kOptimizerLeftOut, &Finding::code);
  ASSERT_NE(left_out, report_.findings.end());
  EXPECT_THAT(left_out->keys, Contains(StartsWith("optimizer.state.exp_avg.")));
  options.checks.error_on = {FindingCode::kDataLost, FindingCode::kOptimizerLeftOut};
  const CheckpointError error =
      error_of([&] { convert(golden(source), directory_ / "none", options); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.what(), HasSubstr("optimizer-left-out: the optimizer stays behind"));
  EXPECT_FALSE(fs::exists(directory_ / "none"));
  options.checks.error_on = {FindingCode::kDataLost};
  convert(golden(source), directory_ / "some", options);
  options.checks.error_on = {FindingCode::kNoEffect};
  options.target.resume = true;
  EXPECT_THAT(error_of([&] { convert(golden(source), directory_ / "none", options); }).what(),
              HasSubstr("nothing to resume"));
}

TEST_F(ConversionSteps, FindingsThatNoConversionMakesAreNoErrorsOfOne) {
  const CheckpointError error = error_of([&] {
    convert(golden("mcore-0.14-synthetic"), directory_ / "none",
            {.checks = {.error_on = {FindingCode::kReaders, FindingCode::kNotFinite}}});
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("of the kind 'not-finite', so"));
}

TEST(Findings, AreExplainedInTheDocumentation) {
  std::ifstream file("docs/tool.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  for (const auto& [code, name] : kFindingCodeNames) {
    const std::string row = "| `" + std::string(name) + "` | ";
    ASSERT_THAT(page, HasSubstr(row));
    const std::string meaning = page.substr(page.find(row) + row.size(), 20);
    const bool of_others =
        std::ranges::any_of(std::vector{"Loads:", "Saves:", "Always", "`stats`"},
                            [&](const char* const begin) { return meaning.starts_with(begin); });
    EXPECT_EQ(is_of_conversions(code), !of_others) << row;
  }
}

}  // namespace
}  // namespace dckpt::conversion_steps_test
