#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt {
namespace {

using ::testing::ElementsAre;
using testing::golden_expected;
using ::testing::HasSubstr;
using testing::kModel;
using testing::kSynthetic;
using testing::path_of;
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

}  // namespace
}  // namespace dckpt
