#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::root_table_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using testing::kModel;
using ::testing::Not;
using testing::path_of;
using testing::Root;
using testing::run_tool;
using ::testing::StartsWith;
using testing::ToolRun;

/// Sets variables of the tool's environment during its lifetime.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~Environment() {
    if (before_)
      ::setenv(name_, before_->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

/// Sets back the time of a checkpoint.
void age_by(const fs::path& checkpoint, std::chrono::hours hours) {
  const auto time = fs::file_time_type::clock::now() - hours;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint))
    fs::last_write_time(entry, time);
  fs::last_write_time(checkpoint, time);
}

/// Returns the part before the report on one checkpoint.
std::string table_of(std::vector<std::string> words) {
  words.insert(words.begin(), "inspect");
  const ToolRun run = run_tool(std::move(words));
  return run.out.substr(0, run.out.find("\n\n") + 1);
}

/// Returns the line of a table that contains `part`.
std::string line_with(const std::string& text, const std::string& part) {
  const std::size_t at = text.find(part);
  if (at == std::string::npos) return "(none)";
  const std::size_t begin = text.rfind('\n', at) + 1;
  return text.substr(begin, text.find('\n', at) - begin);
}

TEST(ToolRootTable, ARootBeginsWithItsIterations) {
  const Root root;
  age_by(root.directory / "iter_0000010", std::chrono::hours(5));
  fs::create_directory(root.directory / "iter_0000030");
  fs::create_directory(root.directory / ".iter_0000040.interrupted-host-4194305-1-abcd");
  const std::string table = table_of({root.text()});
  EXPECT_THAT(table, StartsWith(root.text() + "  3 iterations\n  ITERATION  SAVED "));
  EXPECT_THAT(line_with(table, " 10  "),
              AllOf(HasSubstr("  5 h ago  "), HasSubstr("iB  complete, a run resumes here")));
  EXPECT_THAT(line_with(table, " 20  "),
              AllOf(HasSubstr("  just now  "), EndsWith("'__2_0.distcp' is missing, in tracker")));
  EXPECT_THAT(line_with(table, " 30  "), EndsWith("unfinished save, no metadata"));
  EXPECT_THAT(line_with(table, " 40  "), EndsWith("interrupted conversion"));
  const ToolRun whole = run_tool({"inspect", root.text()});
  EXPECT_EQ(whole.exit_code, 0);
  EXPECT_THAT(whole.out, HasSubstr("\n\n" + root.text() + "/iter_0000020\n  format "));
  EXPECT_THAT(run_tool({"inspect", root.text(), "--iteration", "10"}).out,
              AllOf(StartsWith(table), HasSubstr("\n\n" + root.text() + "/iter_0000010\n")));
}

TEST(ToolRootTable, IterationsAreInTheJson) {
  const Root root;
  const Value json = run_tool({"inspect", root.text(), "--json"}).json();
  const Value& iterations = json.at("iterations");
  ASSERT_EQ(iterations.size(), 2u);
  std::vector<std::string> members;
  for (const auto& [name, value] : iterations.items()[0].as_dict())
    members.push_back(name.as_str());
  EXPECT_THAT(members, ElementsAre("directory", "iteration", "saved", "bytes", "files", "state",
                                   "why", "resumed", "tracked", "removed_by_policy"));
  EXPECT_TRUE(iterations.items()[0].at("resumed").as_bool());
  EXPECT_TRUE(iterations.items()[0].at("removed_by_policy").is_none());
  EXPECT_EQ(iterations.items()[1].at("state").as_str(), "file-missing");
  EXPECT_TRUE(iterations.items()[1].at("tracked").as_bool());
  EXPECT_EQ(json.at("unfinished").size(), 0u);
  const Value alone = run_tool({"inspect", path_of(kModel), "--json"}).json();
  EXPECT_EQ(alone.find("iterations"), nullptr);
}

TEST(ToolRootTable, WithAPolicyItSaysWhatTheNextSaveRemoves) {
  Root root;
  fs::rename(root.directory / "iter_0000010", root.directory / "iter_0000030");
  root.track(30);
  const TempDir other;
  std::ofstream(other / "policy.yaml") << "version: 1\nretention: {keep_last: 1}\n";
  const std::string policy = (other / "policy.yaml").string();
  const std::string table = table_of({root.text(), "--policy", policy});
  EXPECT_THAT(table, HasSubstr("'__2_0.distcp' is missing, to be removed\n"));
  EXPECT_THAT(table, HasSubstr("the policy removes 1 of them when"));
  EXPECT_THAT(table_of({root.text()}), Not(HasSubstr("remove")));
  const Value json = run_tool({"inspect", root.text(), "--policy", policy, "--json"}).json();
  EXPECT_TRUE(json.at("iterations").items()[0].at("removed_by_policy").as_bool());
}

TEST(ToolRootTable, WhatCannotBeOpenedHasItsTableFirst) {
  TempDir directory;
  std::ofstream(directory / "latest_checkpointed_iteration.txt") << 10;
  const ToolRun empty = run_tool({"inspect", directory.path().string()});
  EXPECT_EQ(empty.exit_code, 5);
  EXPECT_THAT(empty.out, HasSubstr("  no iterations\n  latest_checkpointed_iteration.txt names "
                                   "iter_0000010, which does not exist\n"));
  Root root;
  root.track(70);
  const ToolRun missing = run_tool({"inspect", root.text()});
  EXPECT_EQ(missing.exit_code, 5);
  EXPECT_THAT(missing.out, AllOf(Not(HasSubstr("a run resumes here")),
                                 HasSubstr("names iter_0000070, which does not exist")));
  EXPECT_THAT(run_tool({"inspect", root.text(), "--json"}).out, "");
}

TEST(ToolRootTable, OldIterationsShareARow) {
  Root root;
  for (int i = 30; i < 90; ++i)
    fs::create_directory(root.directory / ("iter_00000" + std::to_string(i)));
  const std::string table = table_of({root.text()});
  EXPECT_THAT(table, HasSubstr("62 iterations\n"));
  EXPECT_THAT(table, HasSubstr("… 30 more, 50 to 79, 30 not complete (--all shows them)\n"));
  EXPECT_THAT(table, AllOf(HasSubstr("\n         20  "), HasSubstr("\n         49  "),
                           Not(HasSubstr("\n         79  ")), HasSubstr("\n         80  "),
                           HasSubstr("\n         89  ")));
  root.track(10);  // so that no other is examined
  EXPECT_THAT(table_of({root.text()}), HasSubstr("… 51 more, 20 to 79 (--all shows them)\n"));
  EXPECT_THAT(table_of({root.text(), "--all"}),
              AllOf(HasSubstr("\n         79  "), Not(HasSubstr("--all"))));
  EXPECT_EQ(run_tool({"inspect", root.text(), "--json"}).json().at("iterations").size(), 62u);
  EXPECT_EQ(run_tool({"inspect", path_of(kModel), "--all"}).exit_code, 2);
}

TEST(ToolRootTable, IterationsStandAlongTimeWithinTheTerminal) {
  const Root root;
  fs::create_directory(root.directory / "iter_0000030");
  age_by(root.directory / "iter_0000010", std::chrono::hours(100));
  age_by(root.directory / "iter_0000020", std::chrono::hours(90));
  const auto time_line = [&](const char* locale, const char* columns) {
    const Environment all("LC_ALL", locale), width("COLUMNS", columns);
    return line_with(table_of({root.text()}), " not complete");
  };
  EXPECT_THAT(time_line("C.UTF-8", "80"),
              ContainsRegex("^  2.* ├●(─)*○(─)*○┤ 2.*  ○ not complete$"));
  const std::string ascii = time_line("C", "80");
  EXPECT_THAT(ascii, ContainsRegex(R"(^  2.* \|o-*x-*x\| 2.*  x not complete$)"));
  EXPECT_EQ(ascii.size(), 80u);
  EXPECT_EQ(time_line("C", "130").size(), 130u);
  EXPECT_EQ(time_line("C", "50"), "(none)");
  fs::remove(root.directory / "iter_0000030");
  EXPECT_EQ(time_line("C", "80"), "(none)");
}

}  // namespace
}  // namespace dckpt::root_table_test
