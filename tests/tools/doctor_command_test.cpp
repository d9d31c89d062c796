#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Copy;
using ::testing::HasSubstr;
using testing::kSynthetic;
using testing::Root;
using testing::run_tool;
using testing::slurp;
using testing::ToolRun;

TEST(ToolDoctor, SaysWhatIsWrongAndWhatMayHelp) {
  const Root root;
  const ToolRun run = run_tool({"doctor", root.text()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out,
              AllOf(HasSubstr("names 'iter_0000020', which is incomplete"),
                    HasSubstr("a run takes  iter_0000010"), HasSubstr("Megatron     iter_0000020"),
                    HasSubstr("--repair-tracker --quarantine 20\n")));
  const Value json = run_tool({"doctor", root.text(), "--json"}).json();
  EXPECT_FALSE(json.at("ok").as_bool());
  EXPECT_EQ(run_tool({"inspect", root.text(), "--iteration", "20"}).exit_code, 0);
}

TEST(ToolDoctor, RepairsAndBringsBack) {
  const Root root;
  const std::vector<std::string> repair{"doctor", root.text(),        "--quarantine",
                                        "20",     "--repair-tracker", "--apply"};
  const ToolRun dry = run_tool({repair.begin(), repair.end() - 1});
  EXPECT_EQ(dry.exit_code, 0);
  EXPECT_THAT(dry.out, HasSubstr("dry run: nothing was changed; --apply does it\n"));
  EXPECT_TRUE(fs::exists(root.directory / "iter_0000020"));
  const ToolRun done = run_tool(repair);
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("undo: dckpt doctor " + root.text() + " --restore 20"),
                              HasSubstr("done; a run now takes iter_0000010")));
  EXPECT_THAT(run_tool({"inspect", root.text()}).out, HasSubstr("resume       iter_0000010"));
  EXPECT_EQ(run_tool({"doctor", root.text()}).exit_code, 0);
  EXPECT_EQ(run_tool({"doctor", root.text(), "--restore", "20", "--apply"}).exit_code, 0);
  EXPECT_EQ(run_tool({"doctor", root.text(), "--restore", "tracker", "--apply"}).exit_code, 0);
  EXPECT_EQ(slurp(root.directory / "latest_checkpointed_iteration.txt"), "20");
  EXPECT_EQ(run_tool({"doctor", root.text(), "--restore", "20"}).exit_code, 5);
}

TEST(ToolDoctor, RefusesWhatHasNoEffect) {
  const Root root;
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--apply"},
                                             {"--dry-run"},
                                             {"--all-jobs-ended"},
                                             {"--clean", "--apply", "--dry-run"},
                                             {"--clean", "--restore", "20"},
                                             {"--quarantine", "latest"}}) {
    std::vector<std::string> line{"doctor", root.text()};
    line.insert(line.end(), words.begin(), words.end());
    EXPECT_EQ(run_tool(line).exit_code, 2) << words.front();
  }
  const ToolRun typo = run_tool({"doctor", root.text() + "s"});
  EXPECT_EQ(typo.exit_code, 3);
  EXPECT_THAT(typo.err, HasSubstr("did you mean '" + root.text() + "'?"));
}

TEST(ToolPrune, ShowsFirstAndRemovesThen) {
  const Root root;
  fs::remove_all(root.directory / "iter_0000020");
  fs::copy(root.directory / "iter_0000010", root.directory / "iter_0000020");
  const std::vector<std::string> prune{"prune", root.text(), "--keep-last", "1", "--apply"};
  EXPECT_THAT(run_tool({prune.begin(), prune.end() - 1}).out,
              AllOf(HasSubstr("remove     iter_0000010, "), HasSubstr("frees "),
                    HasSubstr("dry run: nothing was changed")));
  EXPECT_TRUE(fs::exists(root.directory / "iter_0000010"));
  EXPECT_EQ(run_tool(prune).exit_code, 0);
  EXPECT_FALSE(fs::exists(root.directory / "iter_0000010"));
  EXPECT_EQ(run_tool({"prune", root.text()}).exit_code, 2);
  std::ofstream(root.directory / "keep.yaml") << "version: 1\nretention: {keep_last: 2}\n";
  const std::string policy = (root.directory / "keep.yaml").string();
  EXPECT_EQ(run_tool({"prune", root.text(), "--policy", policy, "--keep-last", "1"}).exit_code, 2);
  const Value json = run_tool({"prune", root.text(), "--policy", policy, "--json"}).json();
  EXPECT_EQ(json.at("steps").size(), 0U);
}

TEST(ToolFleet, VerifiesEachLineAndEndsWithTheWorstCode) {
  const Root root;
  const Copy sound(kSynthetic);
  const TempDir folder;
  const std::string list = (folder / "list").string(), state = (folder / "state").string();
  std::ofstream(list) << "# roots\n\n" << sound.text() << "\r\n";
  const std::vector<std::string> words{"verify", "--fleet", list, "--state", state, "--json"};
  EXPECT_EQ(run_tool(words).json().at("status").as_str(), "verified");
  EXPECT_EQ(run_tool(words).json().at("status").as_str(), "unchanged");
  std::ofstream(list, std::ios::app) << root.text() << "\n";
  ToolRun run = run_tool({words.begin(), words.end() - 1});
  EXPECT_EQ(run.exit_code, 1) << run.err;
  EXPECT_THAT(run.out, AllOf(HasSubstr("OK  " + sound.text() + "  unchanged\n"),
                             HasSubstr("BAD  " + root.text() + "/iter_0000020  "),
                             HasSubstr("3 checkpoints: 2 OK, 1 with problems; 1 unchanged\n")));
  std::ofstream(list, std::ios::app) << root.text() << "/nothing\n";
  EXPECT_EQ(run_tool(words).exit_code, 3);
  std::ofstream(state) << "{";
  run = run_tool(words);
  EXPECT_EQ(run.exit_code, 4);
  EXPECT_THAT(run.err, HasSubstr("remove it to verify all checkpoints again"));
  run = run_tool({"verify", "--fleet", list, "--state", list});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("choose another name for the state file"));
}

TEST(ToolFleet, RefusesWhatHasNoEffect) {
  const Copy sound(kSynthetic);
  const TempDir folder;
  const std::string list = (folder / "list").string();
  std::ofstream(list) << "# nothing\n";
  EXPECT_EQ(run_tool({"verify", "--fleet", list}).exit_code, 2);
  EXPECT_EQ(run_tool({"verify", "--fleet", list + "s"}).exit_code, 3);
  std::ofstream(list) << sound.text() << "\n";
  EXPECT_EQ(run_tool({"verify", "--fleet", list, "--max-rate", "100MiB/s"}).exit_code, 0);
  EXPECT_EQ(run_tool({"verify", "--fleet", list, "--max-rate", "fast"}).exit_code, 2);
  EXPECT_EQ(run_tool({"verify", "--fleet", list, "--nan"}).exit_code, 2);
  EXPECT_EQ(run_tool({"verify", "--fleet", list, sound.text()}).exit_code, 2);
  EXPECT_EQ(run_tool({"verify", sound.text(), "--state", list}).exit_code, 2);
  EXPECT_EQ(run_tool({"verify"}).exit_code, 2);
}

}  // namespace
}  // namespace dckpt
