#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "mapping/base/parallel_for.h"
#include "tests/support/golden.h"
#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::remove_command_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Copy;
using testing::golden;
using ::testing::HasSubstr;
using testing::kModel;
using testing::run_tool;
using testing::ToolRun;

TEST(ToolRemove, TakesAPrefixOutAndSaysWhatStays) {
  const Copy copy(kModel);
  const ToolRun dry = run_tool({"remove", copy.text(), "--prefix", "optimizer.", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_THAT(dry.out, AllOf(HasSubstr("stay in files that hold other keys too"),
                             HasSubstr("dry run: nothing was removed\n")));
  EXPECT_THAT(run_tool({"inspect", copy.text()}).out, HasSubstr("optimizer.state"));

  const Value json = run_tool({"remove", copy.text(), "--prefix", "optimizer.", "--json"}).json();
  EXPECT_GT(json.at("tensors").as_int(), 0);
  EXPECT_GT(json.at("bytes_kept").as_int(), 0);
  EXPECT_EQ(json.at("files").size(), 0u);
  EXPECT_FALSE(json.at("dry_run").as_bool());
  EXPECT_THAT(run_tool({"inspect", copy.text()}).out, Not(HasSubstr("optimizer.state")));
  EXPECT_EQ(run_tool({"verify", copy.text(), "--deep"}).exit_code, 0);
}

TEST(ToolRemove, OfTwoAtOnceOneIsDoneAndTheOtherIsTold) {
  int conflicts = 0;
  for (int run = 0; run < 20; ++run) {
    SCOPED_TRACE(run);
    const Copy copy(kModel);
    const std::vector<std::string> prefixes{"optimizer.state.exp_avg.",
                                            "optimizer.state.exp_avg_sq."};
    std::vector<ToolRun> runs(2);
    parallel_for(2, 2, [&](std::size_t i) {
      runs[i] = run_tool({"remove", copy.text(), "--prefix", prefixes[i]});
    });
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_THAT(runs[i].exit_code, AnyOf(0, 7)) << runs[i].err;
      conflicts += runs[i].exit_code == 7 ? 1 : 0;
      const auto holds = HasSubstr("\"" + prefixes[i]);
      const std::string keys = run_tool({"inspect", copy.text(), "--json"}).out;
      if (runs[i].exit_code == 0)
        EXPECT_THAT(keys, Not(holds)) << "it printed: " << runs[i].out;
      else
        EXPECT_THAT(keys, holds) << "it printed: " << runs[i].err;
    }
    EXPECT_EQ(run_tool({"verify", copy.text(), "--deep"}).exit_code, 0);
    for (std::size_t i = 0; i < 2; ++i) {
      if (runs[i].exit_code != 7) continue;
      EXPECT_EQ(run_tool({"remove", copy.text(), "--prefix", prefixes[i]}).exit_code, 0);
    }
    EXPECT_FALSE(fs::exists(fs::path(copy.text()) / ".dckpt.remove.lock"));
  }
  RecordProperty("conflicts", conflicts);
}

TEST(ToolRemove, APrefixWithoutKeysIsAUsageError) {
  const Copy copy(kModel);
  const ToolRun run = run_tool({"remove", copy.text(), "--prefix", "optimzer."});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("(did you mean 'optimizer.'?)"));
  EXPECT_EQ(run_tool({"remove", copy.text()}).exit_code, 2) << "the prefix has to be given";
}

TEST(ToolRemove, OtherFormatsAreRefused) {
  const ToolRun run =
      run_tool({"remove", golden("mcore-0.14-zarr-tp2pp1dp2").string(), "--prefix", "decoder"});
  EXPECT_EQ(run.exit_code, 6);
  EXPECT_THAT(run.err,
              HasSubstr("not from zarr; 'dckpt convert --exclude' makes a copy without them"));
}

}  // namespace
}  // namespace dckpt::remove_command_test
