#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"
#include "tests/tools/run_tool.h"

namespace dckpt::report_command_test {
namespace {

namespace fs = std::filesystem;
using testing::golden;
using ::testing::HasSubstr;
using testing::run_tool;
using testing::slurp;
using ::testing::StartsWith;
using testing::ToolRun;

const std::string kModel = "mcore-0.16-fully-reshardable-tp2pp2dp2";

TEST(ToolReport, APageIsWrittenAndReplaced) {
  const TempDir scratch;
  const std::string page = scratch / "page.html";
  std::ofstream(page) << "older";
  const ToolRun run = run_tool({"report", golden(kModel), "-o", page});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(slurp(page), StartsWith("<!doctype html>"));
  EXPECT_EQ(run_tool({"report", golden(kModel), "-o", "-"}).out, slurp(page));
}

TEST(ToolReport, NoFileOfWhatIsReadIsReplaced) {
  const TempDir scratch;
  const std::string root = scratch / "root", iteration = root + "/iter_0000010";
  fs::create_directories(root);
  fs::copy(golden(kModel), iteration, fs::copy_options::recursive);
  fs::create_symlink(iteration, scratch / "link");
  const std::string metadata = slurp(iteration + "/.metadata");
  const std::string linked = scratch / "link/.metadata";
  for (const auto& [path, output] : std::vector<std::pair<std::string, std::string>>{
           {root, root + "/page.html"},
           {root, linked},
           {linked, iteration + "/.metadata"},
           {iteration + "/.metadata", iteration + "/new.html"}}) {
    const ToolRun run = run_tool({"report", path, "-o", output});
    EXPECT_EQ(run.exit_code, 2) << output;
    EXPECT_THAT(run.err, HasSubstr("choose a name outside"));
  }
  EXPECT_EQ(run_tool({"extract", root, "--common", "-o", iteration + "/.metadata"}).exit_code, 2);
  EXPECT_EQ(run_tool({"report", golden(kModel), "-o", scratch / "page.html", "--compare", root})
                .exit_code,
            run_tool({"diff", golden(kModel), root}).exit_code);
  EXPECT_EQ(slurp(iteration + "/.metadata"), metadata);
}

/// An output, and whether it is written.
struct Output {
  const char* what;
  const char* name;  ///< in the folder `other`
  bool is_there;     ///< the file exists before
  bool is_written;
};

TEST(ToolReport, NoTrackerAndNoFileOfAnotherCheckpointIsReplaced) {
  const TempDir scratch;
  const fs::path other = scratch / "other";
  fs::create_directories(other / "hf");
  fs::copy(golden(kModel), other / "iter_0000010", fs::copy_options::recursive);
  for (const std::string name : {"mcore-0.14-zarr-tp2pp1dp2", "legacy-torch-tp2pp2"})
    fs::copy(golden(name), other / name, fs::copy_options::recursive);
  for (const char* const name : {"hf/config.json", "hf/model.safetensors", "plain/norm.safetensors",
                                 "plain/common.json", "iter_0000010/page.html"}) {
    fs::create_directories((other / name).parent_path());
    std::ofstream(other / name) << "{}";
  }
  std::ofstream(other / "latest_checkpointed_iteration.txt") << "10";
  const std::vector<Output> outputs{
      {"a tracker", "latest_checkpointed_iteration.txt", true, false},
      {"a tracker where there is none", "plain/latest_checkpointed_iteration.txt", false, false},
      {"Megatron-Bridge's tracker", "latest_train_state.pt", false, false},
      {"the lock of a root", ".dckpt.lock", false, false},
      {"metadata", "iter_0000010/.metadata", true, false},
      {"data", "iter_0000010/__0_0.distcp", true, false},
      {"the common state", "iter_0000010/common.pt", true, false},
      {"zarr", "mcore-0.14-zarr-tp2pp1dp2/embedding.word_embeddings.weight/.zarray", true, false},
      {"a rank's file", "legacy-torch-tp2pp2/iter_0000010/mp_rank_00_000/model_optim_rng.pt", true,
       false},
      {"the config.json of a model", "hf/config.json", true, false},
      {"a model", "hf/model.safetensors", true, false},
      {"a page in a checkpoint", "iter_0000010/page.html", true, true},
      {"what was extracted before", "plain/common.json", true, true},
      {"a tensor that was extracted before", "plain/norm.safetensors", true, true},
      {"a new file", "plain/new.json", false, true},
  };
  for (const Output& test : outputs) {
    SCOPED_TRACE(test.what);
    const fs::path file = other / test.name;
    ASSERT_EQ(fs::exists(file), test.is_there);
    const std::string before = test.is_there ? slurp(file) : "";
    const bool is_tensor = file.extension() == ".safetensors";
    const ToolRun run =
        file.extension() == ".html"
            ? run_tool({"report", golden(kModel), "-o", file})
            : run_tool({"extract", golden(kModel),
                        is_tensor ? "decoder.final_layernorm.weight" : "--common", "-o", file});
    EXPECT_EQ(run.exit_code, test.is_written ? 0 : 2) << run.err;
    if (test.is_written) continue;
    EXPECT_THAT(run.err, HasSubstr("the output would replace a file of"));
    EXPECT_EQ(fs::exists(file) ? slurp(file) : "", before);
  }
}

TEST(ToolReport, StatisticsAndDifferencesAreThereOnRequest) {
  const std::string without = run_tool({"report", golden(kModel), "-o", "-"}).out;
  const std::string with = run_tool({"report", golden(kModel), "-o", "-", "--stats", "--compare",
                                     golden("mcore-0.15-fully-reshardable-tp2pp2dp2")})
                               .out;
  for (const char* const part : {R"("stats": {)", R"("comparison": {)"}) {
    EXPECT_THAT(with, HasSubstr(part));
    EXPECT_THAT(without, ::testing::Not(HasSubstr(part)));
  }
}

TEST(ToolReport, APartThatCannotBeReadIsAWarning) {
  const TempDir scratch;
  fs::copy(golden(kModel), scratch / "other");
  fs::resize_file(scratch / "other/__3_1.distcp", 100);
  const ToolRun run = run_tool(
      {"report", golden(kModel), "-o", scratch / "page.html", "--compare", scratch / "other"});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.err, HasSubstr("dckpt: warning: the page does not show the differences: "));
  EXPECT_THAT(slurp(scratch / "page.html"), StartsWith("<!doctype html>"));
}

TEST(ToolReport, TwoIterationsOfARootAreCompared) {
  const TempDir root;
  fs::copy(golden("mcore-0.15-fully-reshardable-tp2pp2dp2"), root / "iter_0000005");
  fs::copy(golden(kModel), root / "iter_0000010");
  std::ofstream(root / "latest_checkpointed_iteration.txt") << "10";
  const std::string path = root / "";
  const ToolRun two = run_tool({"report", path, "-o", "-", "--compare-iteration", "5"});
  EXPECT_EQ(two.exit_code, 0) << two.err;
  EXPECT_THAT(two.out, HasSubstr(R"("comparison": {)"));
  EXPECT_EQ(run_tool({"report", path, "-o", "-", "--compare", path}).exit_code, 2);
  EXPECT_EQ(run_tool({"report", path, "-o", "-", "--compare-iteration", "10"}).exit_code, 2);
}

TEST(ToolReport, DamageIsShownAndTold) {
  const TempDir scratch;
  fs::copy(golden(kModel), scratch / "missing");
  fs::remove(scratch / "missing/__3_1.distcp");
  EXPECT_EQ(run_tool({"report", scratch / "missing", "-o", scratch / "page"}).exit_code, 1);
  EXPECT_THAT(slurp(scratch / "page"), HasSubstr("No such file"));

  fs::copy(golden(kModel), scratch / "cut");
  fs::resize_file(scratch / "cut/.metadata", 100);
  EXPECT_EQ(run_tool({"report", scratch / "cut", "-o", scratch / "cut.html"}).exit_code, 4);
  EXPECT_THAT(slurp(scratch / "cut.html"), HasSubstr(R"("opened": false)"));
}

TEST(ToolReport, WhatIsNotThereHasNoPage) {
  const TempDir scratch;
  const std::string page = scratch / "page.html";
  EXPECT_EQ(run_tool({"report", scratch / "nothing", "-o", page}).exit_code, 3);
  EXPECT_EQ(
      run_tool({"report", golden(kModel), "-o", page, "--compare", scratch / "nothing"}).exit_code,
      3);
  EXPECT_EQ(run_tool({"report", golden(kModel)}).exit_code, 2);
  EXPECT_FALSE(fs::exists(page));
}

}  // namespace
}  // namespace dckpt::report_command_test
