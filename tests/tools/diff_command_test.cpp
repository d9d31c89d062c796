#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/golden.h"
#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::diff_command_test {
namespace {

using ::testing::ElementsAre;
using testing::golden;
using testing::golden_expected;
using ::testing::HasSubstr;
using testing::kModel;
using testing::kSynthetic;
using testing::path_of;
using testing::Root;
using testing::run_tool;
using testing::ToolRun;

std::vector<std::string> members(const Value& dict) {
  std::vector<std::string> names;
  for (const auto& [name, value] : dict.as_dict()) names.push_back(name.as_str());
  return names;
}

TEST(ToolDiff, DigestAgreesWithTheProducer) {
  for (const char* const name : {kSynthetic, kModel, "dcp-fsdp2-tp", "mcore-head-moe-ep2"}) {
    const Value json = run_tool({"digest", path_of(name), "--json"}).json();
    const Value expected = golden_expected(name);
    EXPECT_THAT(members(json), ElementsAre("tensors", "objects"));
    ASSERT_EQ(json.at("tensors").size(), expected.at("tensors").size()) << name;
    for (const auto& [key, tensor] : json.at("tensors").as_dict()) {
      EXPECT_EQ(tensor.at("sha256"), expected.at("tensors").at(key).at("sha256"))
          << name << " " << key.as_str();
      EXPECT_EQ(tensor.at("shape"), expected.at("tensors").at(key).at("global_shape"));
      EXPECT_EQ(tensor.at("dtype"), expected.at("tensors").at(key).at("dtype"));
    }
  }
}

TEST(ToolDiff, DiffEndsWithOneWhereSomethingDiffers) {
  const ToolRun same = run_tool({"diff", path_of(kModel), path_of(kModel)});
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_THAT(same.out, HasSubstr("equal"));
  const ToolRun other = run_tool({"diff", path_of(kModel), path_of("mcore-0.14-flattened-single")});
  EXPECT_EQ(other.exit_code, 1);
  const Value json =
      run_tool({"diff", path_of(kModel), path_of("mcore-0.14-flattened-single"), "--json"}).json();
  EXPECT_FALSE(json.at("equal").as_bool());
  EXPECT_GT(json.at("differences").size(), 0u);
}

TEST(ToolDiff, TwoIterationsOfOneRootAreCompared) {
  Root root;
  std::filesystem::copy(golden("mcore-0.14-flattened-single"), root.directory / "iter_0000030",
                        std::filesystem::copy_options::recursive);
  root.track(10);
  const auto exit_of = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "diff");
    return run_tool(std::move(words)).exit_code;
  };
  EXPECT_EQ(exit_of({root.text(), "--iteration-a", "10", "--iteration-b", "30"}), 1);
  EXPECT_EQ(exit_of({root.text(), "--iteration-a", "30"}), 1);  // compares with the latest
  EXPECT_EQ(exit_of({root.text(), path_of(kModel), "--iteration-a", "10"}), 0);
  EXPECT_EQ(exit_of({root.text(), "--iteration-a", "10", "--iteration-b", "latest"}), 2);
  EXPECT_EQ(exit_of({root.text()}), 2);
  EXPECT_EQ(exit_of({root.text(), "--iteration", "10"}), 2);
  EXPECT_THAT(run_tool({"diff", root.text(), "--iteration", "10"}).err,
              HasSubstr("--iteration-a and --iteration-b"));
}

TEST(ToolDiff, AnIterationIsOfBothRootsUnlessASideHasItsOwn) {
  Root a, b;
  std::filesystem::copy(golden("mcore-0.14-flattened-single"), b.directory / "iter_0000030",
                        std::filesystem::copy_options::recursive);
  b.track(30);
  const auto run = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"diff", a.text(), b.text()});
    return run_tool(std::move(options));
  };
  EXPECT_EQ(run({"--iteration", "10"}).exit_code, 0);
  EXPECT_EQ(run({"--iteration", "10", "--iteration-b", "30"}).exit_code, 1);
  EXPECT_EQ(run({"--iteration", "10", "--iteration-b", "latest"}).exit_code, 1);
  EXPECT_EQ(run({"--iteration", "30"}).exit_code, 5);  // a does not have it
}

TEST(ToolDiff, AnIterationForBothSidesIsRefusedIfBothHaveTheirOwn) {
  const Root root;
  EXPECT_EQ(run_tool({"diff", root.text(), path_of(kModel), "--iteration", "10", "--iteration-a",
                      "10", "--iteration-b", "20"})
                .exit_code,
            2);
}

}  // namespace
}  // namespace dckpt::diff_command_test
