// dckpt under a launcher prints what one process prints, once.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/strategies/comm/mpi/run_mpi.h"
#include "tests/tools/goldens.h"

namespace dckpt::testing::mpi_tool_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Returns the lines that the tool has printed among those of a launcher.
std::string lines_of_tool(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::string kept;
  while (std::getline(lines, line))
    if (line.starts_with("dckpt: ")) kept += line + "\n";
  return kept;
}

class MpiTool : public OnEachMpi {
 protected:
  MpiTool() {
    std::filesystem::copy_file(DCKPT_TOOL, folder_ / "dckpt");
    if (!GetParam().tool.empty())
      std::filesystem::create_symlink(GetParam().tool, folder_ / "dckpt-mpi");
  }
  /// Returns the command without a launcher's other arguments.
  std::string dckpt(const std::string& words) const {
    return (folder_ / "dckpt").string() + " " + words;
  }
  ToolRun three(const std::string& words) const {
    ToolRun done = run_ranks(3, dckpt(words));
    done.err = lines_of_tool(done.err);
    return done;
  }
  void expect_same(const std::string& words) const {
    const ToolRun one = run(dckpt(words));
    const ToolRun shared = three(words);
    EXPECT_EQ(shared.out, one.out) << words;
    EXPECT_EQ(shared.err, one.err) << words;
    EXPECT_EQ(shared.exit_code, one.exit_code) << words;
  }

  TempDir folder_;
};
INSTANTIATE_TEST_SUITE_P(Mpi, MpiTool, ::testing::ValuesIn(all_mpis()),
                         [](const auto& tested) { return tested.param.name; });

TEST_P(MpiTool, ReportsAreThoseOfOneProcess) {
  const std::string model = path_of(kModel);
  expect_same("verify " + model + " --deep --nan");
  expect_same("digest " + path_of(kSynthetic) + " --json");
  expect_same("stats " + model + " --json");
  expect_same("diff " + model + " " + path_of(kSynthetic));
  expect_same("inspect " + model);
}

TEST_P(MpiTool, DamageIsReportedOnceAndAsByOneProcess) {
  const Copy damaged(kModel);
  std::filesystem::resize_file(damaged.path() / "__1_0.distcp", 3000);
  expect_same("verify " + damaged.text() + " --deep");
  expect_same("verify " + damaged.text() + " --deep --json");
  const Root root;
  expect_same("verify " + root.text() + " --all");
  expect_same("verify " + root.text() + "/nothing");
  expect_same("stats " + root.text() + " --iteration 10 --keys 'decodr.*'");
}

TEST_P(MpiTool, AnErrorOfOneRankEndsAllAndIsPrintedOnce) {
  const Copy damaged(kModel);
  std::filesystem::resize_file(damaged.path() / "__1_0.distcp", 3000);
  const ToolRun done = three("digest " + damaged.text());
  EXPECT_EQ(done.exit_code, run(dckpt("digest " + damaged.text())).exit_code);
  EXPECT_THAT(done.out, IsEmpty());
  EXPECT_THAT(done.err,
              AllOf(HasSubstr("computing the digests failed on rank"), HasSubstr("__1_0.distcp")));
  EXPECT_EQ(std::ranges::count(done.err, '\n'), 1);
}

TEST_P(MpiTool, AConversionIsSharedAndPublishedOnce) {
  const std::string words = "convert " + path_of(kModel) + " " + (folder_ / "new").string();
  const ToolRun one = run(dckpt(words + " --ranks 6"));
  ASSERT_EQ(one.exit_code, 0) << one.err;
  std::filesystem::rename(folder_ / "new", folder_ / "by_one");
  const ToolRun shared = three(words + " --ranks 6");
  EXPECT_EQ(shared.out, one.out);
  EXPECT_EQ(shared.err, one.err);
  EXPECT_EQ(
      run("diff -r " + (folder_ / "new").string() + " " + (folder_ / "by_one").string()).exit_code,
      0);
  const ToolRun again = three(words + " --ranks 6");
  EXPECT_EQ(again.exit_code, run(dckpt(words + " --ranks 6")).exit_code);
  EXPECT_THAT(again.err, HasSubstr("--overwrite"));
  EXPECT_EQ(std::ranges::count(again.err, '\n'), 1);
  expect_same(words + "2 --dry-run");
  EXPECT_FALSE(exists(folder_ / "new2"));
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
}

TEST_P(MpiTool, RemovalsAreNotShared) {
  const Copy model(kModel);
  const ToolRun done = three("remove " + model.text() + " --prefix decoder");
  EXPECT_EQ(done.exit_code, 6);
  EXPECT_EQ(done.err,
            "dckpt: error: remove is not shared by several processes: start one process\n");
}

TEST_P(MpiTool, RanksWithOtherArgumentsAreRefused) {
  const std::string a = dckpt("digest " + path_of(kModel));
  const std::string b = dckpt("digest " + path_of(kSynthetic));
  const ToolRun done = run(GetParam().launcher + " -n 1 " + a + " : -n 1 " + b);
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_THAT(done.err, HasSubstr("the ranks were given different arguments"));
}

TEST_P(MpiTool, WithoutMpiProcessesDoNotRepeatTheWork) {
  std::filesystem::remove(folder_ / "dckpt-mpi");
  ToolRun done = three("digest " + path_of(kSynthetic));
  EXPECT_EQ(done.exit_code, 6);
  EXPECT_THAT(done.out, IsEmpty());
  EXPECT_THAT(done.err, AllOf(HasSubstr("dckpt-mpi: No such file or directory"),
                              HasSubstr("DCKPT_LAUNCHER=none")));
  EXPECT_EQ(std::ranges::count(done.err, '\n'), 1);
  done = run("env DCKPT_LAUNCHER=none " + GetParam().launcher + " -n 2 " +
             dckpt("digest " + path_of(kSynthetic)));
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_EQ(run_ranks(1, dckpt("--version")).exit_code, 0) << "a single process needs no MPI";
  EXPECT_EQ(run("env DCKPT_LAUNCHER=nnoe " + dckpt("--version")).exit_code, 2);
}

/// Processes that MPI does not connect would all do the same.
TEST_P(MpiTool, ALauncherOfAnotherMpiIsNoticed) {
  std::string other;
  for (const Mpi& mpi : all_mpis())
    if (mpi.name != GetParam().name) other = mpi.launcher;
  if (other.empty()) GTEST_SKIP() << "one MPI alone";
  const ToolRun done = run(other + " -n 2 " + dckpt("digest " + path_of(kSynthetic)));
  EXPECT_NE(done.exit_code, 0);
  EXPECT_THAT(done.out, IsEmpty());
  EXPECT_THAT(lines_of_tool(done.err), HasSubstr("the launcher has started 2 processes"));
}

}  // namespace
}  // namespace dckpt::testing::mpi_tool_test
