#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist_checkpointing/rewrite/convert.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Field;
using testing::golden;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kBuckets = "mcore-0.16-dp-reshardable-tp2pp1dp2";

class ConversionSteps : public ::testing::Test {
 protected:
  std::vector<std::string> names(const std::string& source, ConvertOptions options) {
    options.dry_run = true;
    report_ = convert(golden(source), directory_ / "copy", options);
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
  EXPECT_THAT(names(kBuckets, {.ranks = 3, .keys = {.exclude = {"rng*"}}}),
              ElementsAre("format", "select", "common state", "plan", "write"));
  EXPECT_EQ(of("format"), "chooses 'torch_dist', as the source has it");
  EXPECT_EQ(of("select"), "takes 23 tensors and 14 objects of 23 tensors and 16 objects");
  EXPECT_THAT(of("plan"), StartsWith("cuts "));
}

TEST_F(ConversionSteps, TheOptimizerChangesBeforeKeysAreSelected) {
  EXPECT_THAT(
      names(kBuckets, {.to = "fsdp_dtensor", .optimizer = OptimizerSharding::kFullyReshardable}),
      ElementsAre("format", "optimizer", "FSDP's keys", "select", "plan", "write"));
  EXPECT_EQ(of("optimizer"), "gives the state of the optimizer the form fully_reshardable");
}

TEST_F(ConversionSteps, AModelLeavesTheRestBehind) {
  EXPECT_THAT(names("mcore-0.15-fully-reshardable-tp2pp2dp2",
                    {.to = "hf", .map = {.name = "none"}, .rename = {{"decoder.", "layers."}}}),
              ElementsAre("format", "model only", "select", "rename", "tensors only", "model files",
                          "plan", "write"));
  EXPECT_THAT(of("rename"), "renames keys by 1 rule");
}

TEST_F(ConversionSteps, EveryRemarkBelongsToAStep) {
  for (const char* const format : {"dcp", "hf", "fsdp_dtensor", "torch_dist", "zarr"}) {
    names("mcore-0.15-fully-reshardable-tp2pp2dp2", {.to = format, .map = {.name = "none"}});
    std::vector<std::string> notes;
    for (const ConversionStep& step : report_.steps)
      notes.insert(notes.end(), step.notes.begin(), step.notes.end());
    EXPECT_EQ(notes, report_.remarks) << format;
    EXPECT_THAT(report_.steps, Each(Field(&ConversionStep::does, Not("")))) << format;
  }
}

}  // namespace
}  // namespace dckpt
