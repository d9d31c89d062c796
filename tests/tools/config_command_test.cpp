#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "configs/policy/policy.h"
#include "tests/support/golden.h"
#include "tests/tools/run_tool.h"

namespace dckpt::config_command_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::run_tool;
using ::testing::StartsWith;
using testing::ToolRun;

constexpr const char* kModel = "mcore-0.14-flattened-tp2pp2dp2";

/// A policy in a file of its own.
struct PolicyFile {
  explicit PolicyFile(const std::string& yaml) { std::ofstream(path()) << yaml; }
  fs::path path() const { return directory / "run.yaml"; }
  std::string text() const { return path().string(); }
  TempDir directory;
};

TEST(ToolConfig, APipeThatNobodyWritesToIsNoPolicyAndNoWait) {
  const TempDir scratch;
  ASSERT_EQ(::mkfifo((scratch / "fifo").c_str(), 0600), 0);
  const ToolRun run = run_tool({"config", "check", (scratch / "fifo").string()});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, HasSubstr("nothing is written into this pipe"));
}

TEST(ToolConfig, ASoundPolicyIsOk) {
  const PolicyFile policy("version: 1\nsave: {integrity: sha256}\n");
  const ToolRun run = run_tool({"config", "check", policy.text()});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_EQ(run.out, "OK  " + policy.text() + "\n");
  EXPECT_THAT(run.err, IsEmpty());
}

TEST(ToolConfig, EveryProblemIsALineAndTheExitCodeIsOne) {
  const PolicyFile policy("version: 1\nsave:\n  integrty: none\n  io: {threads: 0}\n");
  const ToolRun run = run_tool({"config", "check", policy.text()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(
      run.out,
      AllOf(StartsWith(policy.text() +
                       ":3:3: save has no field 'integrty' (did you mean 'integrity'?)"),
            HasSubstr("\n" + policy.text() +
                      ":4:17: save.io.threads: found '0', expected an integer from 1 to 1024\n")));
  EXPECT_THAT(run.err,
              StartsWith("dckpt: error: 2 problems in '" + policy.text() + "', the first: "));
}

TEST(ToolConfig, ProblemsForProgramsHaveLineAndColumn) {
  const PolicyFile policy("version: 2\n");
  const ToolRun run = run_tool({"config", "check", policy.text(), "--json"});
  EXPECT_EQ(run.exit_code, 6);  // valid, but not supported by this version
  const Value json = run.json();
  EXPECT_EQ(json.at("file").as_str(), policy.text());
  EXPECT_FALSE(json.at("ok").as_bool());
  const Value& problem = json.at("problems").items().front();
  EXPECT_EQ(problem.at("file").as_str(), policy.text());
  EXPECT_EQ(problem.at("line").as_int(), 1);
  EXPECT_EQ(problem.at("column").as_int(), 10);
  EXPECT_EQ(problem.at("code").as_str(), "unsupported");
  EXPECT_THAT(problem.at("message").as_str(), StartsWith("version: this release reads"));
}

TEST(ToolConfig, AStrategyThatTheToolDoesNotKnowIsReportedWithThoseItKnows) {
  const PolicyFile policy("version: 1\nsave: {strategy: torch_dits}\nload: {strategy: zar}\n");
  const ToolRun run = run_tool({"config", "check", policy.text()});
  EXPECT_EQ(run.exit_code, 6);
  EXPECT_THAT(
      run.out,
      AllOf(HasSubstr(":2:18: save.strategy: no strategy saves with backend 'torch_dits'; there "
                      "are: 'torch_dist version 1', 'dcp version 1'"),
            HasSubstr("(did you mean 'torch_dist'?)\n")));
  EXPECT_THAT(run.out, HasSubstr(":3:18: load.strategy: no strategy reads backend 'zar'"));
  const PolicyFile long_form("version: 1\nsave:\n  backend: {name: torch_dist, version: 7}\n");
  EXPECT_THAT(
      run_tool({"config", "check", long_form.text()}).out,
      HasSubstr(":3:12: save.strategy: no strategy saves with backend 'torch_dist' version 7"));
}

TEST(ToolConfig, WhatTheStrategyCannotDoIsReportedAtTheFieldToChange) {
  const PolicyFile policy(
      "version: 1\nsave: {strategy: dcp, flattened: megatron}\n"
      "load: {backend: {name: zarr, options: {level: 3}}}\n");
  const ToolRun run = run_tool({"config", "check", policy.text()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, HasSubstr(":2:34: save.flattened: strategy 'dcp' stores flattened tensors "
                                 "as boxes only; leave it at boxes\n"));
  EXPECT_THAT(run.out, HasSubstr(":3:17: load.strategy: strategy 'zarr' has no options of its own, "
                                 "but load.backend.options has 'level'"));
}

TEST(ToolConfig, ShowPrintsAPolicyThatSaysTheSame) {
  const PolicyFile policy(
      "version: 1\nload: {threads: 5, rename: [{from: '^a', to: \"\\\\0\"}]}\n");
  const ToolRun run = run_tool({"config", "show", policy.text()});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, HasSubstr("\n  threads: 5\n"));
  EXPECT_EQ(Policy::from_text(run.out), Policy::from_file(policy.path()));
  const Value json = run_tool({"config", "show", policy.text(), "--json"}).json();
  EXPECT_EQ(json.at("load").at("threads").as_int(), 5);
  EXPECT_EQ(json.at("load").at("rename").items().front().at("to").as_str(), "\\0");
  EXPECT_TRUE(json.at("save").at("io").at("fsync").as_bool());
  EXPECT_EQ(json.at("load").at("staging").as_str(), "64MiB");
  EXPECT_TRUE(json.at("save").at("separation_hint").is_none());
}

TEST(ToolConfig, ShowOfAPolicyWithProblemsPrintsNone) {
  const PolicyFile policy("version: 1\nspeed: 1\n");
  const ToolRun run = run_tool({"config", "show", policy.text()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.out, IsEmpty());
  EXPECT_THAT(run.err, HasSubstr(":2:1: the file has no field 'speed'"));
}

TEST(ToolConfig, PoliciesThatComeWithItGoByTheirNames) {
  EXPECT_EQ(Policy::from_text(run_tool({"config", "show", "production"}).out),
            Policy::shipped("production"));
  const ToolRun slip = run_tool({"config", "check", "prodution"});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_THAT(slip.err, HasSubstr("did you mean 'production'?"));
}

TEST(ToolConfig, FilesThatCannotBeReadAreThree) {
  const ToolRun run = run_tool({"config", "check", "/nonexistent/run.yaml"});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.err, HasSubstr("/nonexistent/run.yaml"));
  EXPECT_EQ(run_tool({"config", "chek", "production"}).exit_code, 2);
  EXPECT_EQ(run_tool({"config", "check"}).exit_code, 2);
}

TEST(ToolConfig, ConvertTakesFromThePolicyWhatNoOptionSays) {
  const TempDir directory;
  const std::string source = golden(kModel).string();
  const auto convert = [&](const std::string& name, std::vector<std::string> options) {
    std::vector<std::string> words = {"convert", source, (directory / name).string(), "--json"};
    words.insert(words.end(), options.begin(), options.end());
    const ToolRun run = run_tool(words);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return directory / name;
  };
  const fs::path plain = convert("plain", {"--policy", "dcp_readers"});
  EXPECT_TRUE(fs::exists(plain / ".metadata"));
  EXPECT_FALSE(fs::exists(plain / "metadata.json"));

  const PolicyFile policy(
      "version: 1\nsave: {compat: megatron-0.19, integrity: sha256, io: {files_per_rank: 2}}\n");
  const fs::path newer = convert("newer", {"--policy", policy.text(), "--exclude", "optimizer.*"});
  EXPECT_TRUE(fs::exists(newer / "integrity.json"));
  EXPECT_TRUE(fs::exists(newer / "__0_1.distcp"));
  EXPECT_FALSE(fs::exists(newer / "common.pt"));

  const fs::path older = convert(
      "older", {"--policy", policy.text(), "--compat", "megatron", "--exclude", "optimizer.*"});
  EXPECT_TRUE(fs::exists(older / "common.pt"));
  EXPECT_TRUE(fs::exists(older / "integrity.json"));
  EXPECT_EQ(run_tool({"diff", older.string(), newer.string()}).exit_code, 0);
}

TEST(ToolConfig, APolicyThatNamesNoFormatLeavesItToTheSource) {
  const TempDir directory;
  const std::string source = golden("dcp-plain-nested").string();
  const auto format_of = [&](const std::string& yaml) {
    const PolicyFile policy("version: 1\n" + yaml + "\n");
    const ToolRun run = run_tool({"convert", source, (directory / "out").string(), "--dry-run",
                                  "--json", "--policy", policy.text()});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.json().at("to").as_str();
  };
  EXPECT_EQ(format_of("load: {threads: 3}"), "dcp");
  EXPECT_EQ(format_of("save: {io: {threads: 3}}"), "dcp");
  EXPECT_EQ(format_of("save: {strategy: torch_dist}"), "torch_dist");
  EXPECT_EQ(format_of("extends: production"), "torch_dist");
}

TEST(ToolConfig, OptionsOfAPolicysStrategyAreTakenOrNamed) {
  const TempDir directory;
  const PolicyFile policy(
      "version: 1\nsave: {backend: {name: dcp, options: {compression: zstd}}}\n");
  const auto convert = [&](const std::string& to) {
    const fs::path out = directory / to;
    const ToolRun run = run_tool({"convert", golden(kModel).string(), out.string(), "--json",
                                  "--to", to, "--policy", policy.text()});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  };
  const std::string unused = "save.backend.options (--to names another)";
  EXPECT_THAT(convert("dcp"), Not(HasSubstr(unused)));
  EXPECT_THAT(convert("torch_dist"), HasSubstr(unused));
}

TEST(ToolConfig, TheCommandLineSaysBesideAPolicyWhatItAllows) {
  const TempDir directory;
  const PolicyFile policy("version: 1\nsave: {backend: {name: safetensors}}\n");
  std::vector<std::string> words = {"convert",
                                    std::string(DCKPT_TEST_DATA) + "/hf_pairs/qwen3/hf",
                                    (directory / "out").string(),
                                    "--exclude",
                                    "model.norm.*",
                                    "--policy",
                                    policy.text(),
                                    "--to",
                                    "hf"};
  const ToolRun refused = run_tool(words);
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("--allow-other-config"));
  words.emplace_back("--allow-other-config");
  EXPECT_EQ(run_tool(words).exit_code, 0);
}

TEST(ToolConfig, ConvertRefusesAPolicyWithProblemsBeforeItWrites) {
  const TempDir directory;
  const PolicyFile policy("version: 1\nsave: {compat: none}\n");
  const ToolRun run = run_tool({"convert", golden(kModel).string(), (directory / "out").string(),
                                "--policy", policy.text()});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr(policy.text() + ":2:16: save.compat: found 'none'"));
  EXPECT_FALSE(fs::exists(directory / "out"));
}

TEST(ToolConfig, ASlipInTheNameOfAMapLeadsToTheMap) {
  EXPECT_THAT(run_tool({"config", "check", "lama"}).err, HasSubstr("did you mean 'llama'?"));
}

}  // namespace
}  // namespace dckpt::config_command_test
