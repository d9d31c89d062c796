#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::verify_command_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Copy;
using ::testing::HasSubstr;
using testing::kModel;
using ::testing::Not;
using testing::path_of;
using testing::Root;
using testing::run_tool;
using ::testing::StartsWith;
using testing::ToolRun;

TEST(ToolVerify, VerifyFindsProblemsAndListsThem) {
  EXPECT_EQ(run_tool({"verify", path_of(kModel), "--deep"}).exit_code, 0);
  Copy broken(kModel);
  fs::remove(broken.path() / "__2_0.distcp");
  const ToolRun run = run_tool({"verify", broken.text()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr("__2_0.distcp"));
  EXPECT_THAT(run.err, AllOf(StartsWith("dckpt: error: "), HasSubstr("__2_0.distcp")));
  const Value json = run_tool({"verify", broken.text(), "--json"}).json();
  EXPECT_FALSE(json.at("ok").as_bool());
  EXPECT_EQ(json.at("problems").items().front().at("code").as_str(), "incomplete");
}

TEST(ToolVerify, VerifyAllLooksAtEveryIterationOfARoot) {
  const Root root;
  const ToolRun run = run_tool({"verify", root.text(), "--all"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("OK  " + root.text() + "/iter_0000010"), HasSubstr("__2_0.distcp"),
                    HasSubstr("takes  iter_0000010 (it is the newest complete iteration)")));
  const Value json = run_tool({"verify", root.text(), "--all", "--json"}).json();
  EXPECT_FALSE(json.at("ok").as_bool());
  ASSERT_EQ(json.at("checkpoints").size(), 2u);
  EXPECT_TRUE(json.at("checkpoints").items()[0].at("ok").as_bool());
  EXPECT_FALSE(json.at("checkpoints").items()[1].at("ok").as_bool());
  EXPECT_EQ(run_tool({"verify", path_of(kModel), "--all"}).exit_code, 2);
  EXPECT_EQ(run_tool({"verify", root.text(), "--all", "--iteration", "10"}).exit_code, 2);
}

TEST(ToolVerify, SoundIterationsInARowShareALine) {
  const Root root;
  for (const char* const name : {"iter_0000008", "iter_0000009", "iter_0000030"})
    fs::copy(path_of("dcp-fsdp2-tp"), root.directory / name, fs::copy_options::recursive);
  const ToolRun run = run_tool({"verify", root.text(), "--all"});
  EXPECT_EQ(run.exit_code, 1);
  const std::string path = root.text() + "/iter_00000";
  EXPECT_THAT(run.out, StartsWith("OK  " + path + "08 … iter_0000010 (3)\n" + path + "20\n"));
  EXPECT_THAT(run.out, HasSubstr("\nOK  " + path + "30\n\n5 checkpoints, "));
  EXPECT_THAT(run.out, HasSubstr(": 4 OK, 1 with problems: 'iter_0000020'\n"));
  fs::remove_all(root.directory / "iter_0000020");
  EXPECT_THAT(run_tool({"verify", root.text(), "--all", "--deep"}).out,
              AllOf(StartsWith("OK  " + path + "08 … iter_0000030 (4)\n\n4 checkpoints, "),
                    HasSubstr(": 4 OK\nchecksums of ")));
}

TEST(ToolVerify, SaysWhatItHasRead) {
  const Root root;
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"verify", path_of(kModel)}, {"verify", root.text(), "--all"}}) {
    std::vector<std::string> with_nan = words;
    with_nan.emplace_back("--nan");
    EXPECT_THAT(run_tool(words).out, HasSubstr("not read; --deep also compares checksums\n"));
    EXPECT_THAT(run_tool(with_nan).out,
                AllOf(HasSubstr("elements searched for NaN and infinity; --deep"),
                      Not(HasSubstr("content not read")), Not(HasSubstr("content   not read;  "))));
  }
}

TEST(ToolVerify, DamageIsShownOncePerFile) {
  Copy broken(kModel);
  fs::resize_file(broken.path() / "__2_0.distcp", 5000);
  const ToolRun run = run_tool({"verify", broken.text()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr(" more problems in this file\n"));
  std::size_t mentions = 0;
  for (std::size_t at = run.out.find("__2_0.distcp"); at != std::string::npos;
       at = run.out.find("__2_0.distcp", at + 1))
    ++mentions;
  EXPECT_EQ(mentions, 1u) << run.out;
  EXPECT_GT(run_tool({"verify", broken.text(), "--json"}).json().at("problems").size(), 2u);
}

TEST(ToolVerify, AFileWithAWrongHashAndDamagedRecordsIsOneEntry) {
  const Copy broken("mcore-head-synthetic");
  std::fstream file(broken.path() / "__0_0.distcp",
                    std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(700);
  file.put('\x7F').flush();
  const ToolRun run = run_tool({"verify", broken.text(), "--deep"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, AllOf(HasSubstr(", and 1 more problem in this file\n"),
                             Not(HasSubstr("hash mismatch"))));
}

TEST(ToolVerify, AllContradictsAnIterationAlsoTheLatest) {
  const Root root;
  const ToolRun run = run_tool({"verify", root.text(), "--all", "--iteration", "latest"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("without --iteration"));
}

}  // namespace
}  // namespace dckpt::verify_command_test
