#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::doctor_command_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Copy;
using ::testing::HasSubstr;
using testing::kSynthetic;
using ::testing::Not;
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

TEST(ToolDoctor, AdvisesOnlyWhatWorks) {
  const Root root;
  const auto advice = [&](std::vector<std::string> words) {
    words.insert(words.begin(), "doctor");
    const std::string out = run_tool(words).out;
    const std::size_t begin = out.find("\nwhat may help: dckpt ");
    return begin == std::string::npos ? "" : out.substr(begin + 22);
  };
  EXPECT_EQ(advice({root.text(), "--deep"}),
            "doctor " + root.text() + " --repair-tracker --quarantine 20 --deep\n");
  fs::remove(root.directory / "iter_0000010" / "__2_0.distcp");
  EXPECT_THAT(advice({root.text()}),
              AllOf(HasSubstr(" --quarantine 10\n"),
                    HasSubstr("no iteration here is complete, so there is none that the tracker")));
  for (const char* const name : {"iter_0000010", "iter_0000020"})
    fs::remove_all(root.directory / name);
  EXPECT_EQ(advice({root.text()}), "");
  EXPECT_EQ(run_tool({"doctor", root.text(), "--repair-tracker"}).exit_code, 5);
}

TEST(ToolDoctor, AdvisesToSayThatJobsOfOtherHostsHaveEnded) {
  const Root root;
  const fs::path left = root.directory / ".iter_0000030.saving-host.of.others-1-1-abcd";
  fs::create_directory(left);
  EXPECT_THAT(run_tool({"doctor", root.text()}).out, Not(HasSubstr("--clean")));
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(48));
  EXPECT_THAT(run_tool({"doctor", root.text()}).out,
              AllOf(HasSubstr(" --clean --all-jobs-ended\n"),
                    HasSubstr("only if no job of another host uses the root")));
}

TEST(ToolDoctor, ALongReportIsAbridgedUnlessAllIsToBeShown) {
  const Root root;
  for (int iteration = 100; iteration < 300; ++iteration)
    fs::create_directory_symlink("iter_0000010",
                                 root.directory / ("iter_0000" + std::to_string(iteration)));
  for (int iteration = 300; iteration < 400; ++iteration)
    fs::create_directory(root.directory / ("iter_0000" + std::to_string(iteration)));
  for (int token = 1000; token < 1100; ++token)
    fs::create_directory(root.directory / (".iter_0000030.interrupted-" + std::to_string(token)));
  std::ofstream(root.directory / ".iter_0000030.interrupted-1000/file") << "12345";
  const auto lines = [&](std::vector<std::string> words) {
    const std::string out = run_tool(std::move(words)).out;
    EXPECT_THAT(out, HasSubstr("frees "));
    return std::ranges::count(out, '\n');
  };
  const std::vector<std::string> clean{"doctor", root.text(), "--clean"};
  EXPECT_LT(lines(clean), 200);
  EXPECT_GT(lines({"doctor", root.text(), "--clean", "--all"}), 500);
  EXPECT_EQ(run_tool({"doctor", root.text(), "--json"}).json().at("iterations").size(), 302U);
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

TEST(ToolDoctor, ATrackerWhereThereWasNoneIsUndoneByRemovingIt) {
  const Root root;
  const fs::path tracker = root.directory / "latest_checkpointed_iteration.txt";
  fs::remove(tracker);
  const std::string out = run_tool({"doctor", root.text(), "--repair-tracker", "--apply"}).out;
  EXPECT_EQ(slurp(tracker), "10");
  EXPECT_THAT(out, HasSubstr("undo: rm " + tracker.string() + "\n"));
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

TEST(ToolDoctor, NamesWhatLooksLikeAnIterationButIsNone) {
  const Root root;
  EXPECT_THAT(run_tool({"doctor", root.text()}).out, Not(HasSubstr("not counted")));
  fs::create_directory(root.directory / "iter_60");
  EXPECT_THAT(run_tool({"doctor", root.text()}).out, HasSubstr("not counted  'iter_60': no "));
}

TEST(ToolDoctor, SaysThatAPoolDoesNotNameItsHosts) {
  const Root root;
  fs::create_directory(root.directory / ".iter_0000030.saving-workers-7");
  EXPECT_THAT(run_tool({"doctor", root.text()}).out, HasSubstr("workers, hosts unknown"));
  EXPECT_THAT(run_tool({"inspect", root.text()}).out, HasSubstr("of a pool of workers"));
}

TEST(ToolWorkers, SaysWhatStaysWhenAPoolIsRemoved) {
  const TempDir directory;
  const std::string pool = (directory / "pool").string();
  const ToolRun done = run_tool(
      {"convert", testing::golden(kSynthetic), pool + "/out", "--to", "dcp", "--workers", pool});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  EXPECT_EQ(run_tool({"workers", pool, "--remove"}).out,
            "removed the pool; " + pool + " stays, since it holds 'out'\n");
  EXPECT_TRUE(fs::exists(pool + "/out/.metadata"));
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
  EXPECT_EQ(run_tool({"prune", root.text(), "--keep", "10"}).exit_code, 2);
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
}  // namespace dckpt::doctor_command_test
