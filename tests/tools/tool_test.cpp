#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "dckpt/cli.h"
#include "examples/raw_strategy/raw_strategy.h"
#include "mapping/base/log.h"
#include "tests/support/golden.h"
#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Copy;
using ::testing::ElementsAre;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kModel;
using testing::kSynthetic;
using ::testing::Not;
using testing::path_of;
using testing::run_tool;
using ::testing::StartsWith;
using testing::ToolRun;

std::vector<std::string> members(const Value& dict) {
  std::vector<std::string> names;
  for (const auto& [name, value] : dict.as_dict()) names.push_back(name.as_str());
  return names;
}

TEST(Tool, WithoutArgumentsGivesAnOverview) {
  const ToolRun run = run_tool({});
  EXPECT_EQ(run.exit_code, 0);
  for (const char* const command :
       {"inspect", "verify", "digest", "stats", "diff", "extract", "convert", "config", "formats"})
    EXPECT_THAT(run.out, HasSubstr(command));
  EXPECT_THAT(run.err, IsEmpty());
}

TEST(Tool, EveryCommandExplainsItselfWithExamples) {
  for (const char* const command : {"inspect", "verify", "digest", "stats", "diff", "extract",
                                    "convert", "config", "formats"}) {
    const ToolRun run = run_tool({command, "--help"});
    EXPECT_EQ(run.exit_code, 0) << command;
    EXPECT_THAT(run.out, AllOf(HasSubstr("Example"), HasSubstr("--json"),
                               HasSubstr(std::string("dckpt ") + command)));
  }
}

TEST(Tool, HelpFitsAHundredColumns) {
  for (const std::vector<std::string>& words : {std::vector<std::string>{"--help"},
                                                {"inspect", "--help"},
                                                {"convert", "--help"},
                                                {"extract", "--help"},
                                                {"diff", "--help"},
                                                {"config", "--help"},
                                                {"completion", "--help"},
                                                {"help", "--help"}}) {
    std::istringstream lines(run_tool(words).out);
    for (std::string line; std::getline(lines, line);)
      EXPECT_LE(tool::columns_of(line), 100u) << line;
  }
}

TEST(Tool, WrongUsageIsTwoAndSuggests) {
  const ToolRun slip = run_tool({"inspekt", "x"});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_THAT(slip.err, AllOf(StartsWith("dckpt: error: "), HasSubstr("did you mean 'inspect'?")));
  EXPECT_EQ(run_tool({"inspect"}).exit_code, 2);
  EXPECT_EQ(run_tool({"verify", "x", "--no-such-option"}).exit_code, 2);
  EXPECT_EQ(run_tool({"diff", path_of(kModel), path_of(kModel), "--rtol", "-1"}).exit_code, 2);
  EXPECT_EQ(run_tool({"extract", path_of(kModel)}).exit_code, 2);
  EXPECT_EQ(run_tool({"extract", path_of(kModel), "--common", "--objects"}).exit_code, 2);
  EXPECT_THAT(run_tool({"\x1b[2Jx"}).err, Not(HasSubstr("\x1b")));
}

TEST(Tool, ExitCodesTellWhatIsWrong) {
  EXPECT_EQ(run_tool({"inspect", "/nonexistent/checkpoint"}).exit_code, 3);
  Copy broken(kModel);
  fs::resize_file(broken.path() / ".metadata", 900);
  const ToolRun corrupt = run_tool({"inspect", broken.text()});
  EXPECT_EQ(corrupt.exit_code, 4);
  EXPECT_THAT(corrupt.err, AllOf(StartsWith("dckpt: error: "), HasSubstr(".metadata")));
  fs::remove(broken.path() / ".metadata");
  EXPECT_EQ(run_tool({"inspect", broken.text()}).exit_code, 5);
  std::ofstream(broken.path() / "metadata.json")
      << R"({"sharded_backend": "other", "sharded_backend_version": 7})";
  const ToolRun unsupported = run_tool({"inspect", broken.text()});
  EXPECT_EQ(unsupported.exit_code, 6);
  EXPECT_THAT(unsupported.err, HasSubstr("metadata.json"));
}

TEST(Tool, KeysAreChosenByGlob) {
  const Value json = run_tool({"inspect", path_of(kModel), "--json", "--keys", "embedding.*",
                               "--keys", "output_layer.*"})
                         .json();
  std::vector<std::string> keys;
  for (const Value& tensor : json.at("tensors").items()) keys.push_back(tensor.at("key").as_str());
  EXPECT_THAT(keys, ::testing::Each(
                        ::testing::AnyOf(StartsWith("embedding."), StartsWith("output_layer."))));
  EXPECT_GE(keys.size(), 2u);
}

TEST(Tool, ExitCodesFollowTheErrorCodes) {
  const std::vector<std::pair<ErrorCode, int>> expected = {
      {ErrorCode::kMismatch, 1},    {ErrorCode::kInvalidArgument, 2}, {ErrorCode::kIo, 3},
      {ErrorCode::kUnavailable, 3}, {ErrorCode::kCorrupt, 4},         {ErrorCode::kIncomplete, 5},
      {ErrorCode::kUnsupported, 6}, {ErrorCode::kAlreadyExists, 7},   {ErrorCode::kAborted, 7},
      {ErrorCode::kInternal, 70},
  };
  for (const auto& [error, code] : expected)
    EXPECT_EQ(tool::exit_code(error), code) << to_string(error);
}

TEST(Tool, NumbersAreDecimal) {
  const TempDir scratch;
  const auto ranks = [&](const char* number) {
    return run_tool({"convert", path_of(kSynthetic), (scratch / "x").string(), "--dry-run",
                     "--json", "--ranks", number});
  };
  EXPECT_EQ(ranks("010").json().at("ranks").as_int(), 10);
  for (const char* const wrong : {"0x10", "0", "1000001", "2.5", "-1"})
    EXPECT_EQ(ranks(wrong).exit_code, 2) << wrong;
}

TEST(Tool, APatternWithoutAMatchIsWrongUsage) {
  const std::string model = path_of(kModel);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"diff", model, model, "--no-common"},
        {"digest", model},
        {"inspect", model, "--json"}}) {
    std::vector<std::string> with_pattern = words;
    with_pattern.insert(with_pattern.end(), {"--keys", "nothing*"});
    const ToolRun run = run_tool(with_pattern);
    EXPECT_EQ(run.exit_code, 2) << words.front();
    EXPECT_THAT(run.err, HasSubstr("no key matches the pattern 'nothing*'"));
    EXPECT_THAT(run.out, IsEmpty());
  }
}

TEST(Tool, PathsWithASchemeAreUnsupported) {
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"inspect", "s3://b/x"},
        {"convert", path_of(kSynthetic), "s3://b/x"},
        {"extract", path_of(kSynthetic), "dtype.float32", "-o", "s3://b/x.npy"},
        {"config", "check", "s3://b/x.yaml"}}) {
    EXPECT_EQ(run_tool(words).exit_code, 6) << words.front();
  }
}

TEST(Tool, FormatsAreListed) {
  EXPECT_THAT(run_tool({"formats"}).out, AllOf(HasSubstr("torch_dist"), HasSubstr("dcp")));
  const Value json = run_tool({"formats", "--json"}).json();
  for (const Value& format : json.at("formats").items())
    EXPECT_THAT(members(format), ElementsAre("name", "versions", "reads", "writes", "about"));
}

TEST(Tool, TrainingRootsAndFilesLeadToTheCheckpoint) {
  const TempDir root;
  fs::copy(golden(kModel), root / "iter_0000010", fs::copy_options::recursive);
  fs::copy(golden("mcore-0.14-flattened-single"), root / "iter_0000020",
           fs::copy_options::recursive);
  std::ofstream(root / "latest_checkpointed_iteration.txt") << "20";
  const auto tensors = [&](std::vector<std::string> words) {
    return run_tool(std::move(words)).json().at("files").size();
  };
  const std::size_t latest = tensors({"inspect", (root / "iter_0000020").string(), "--json"});
  const std::size_t first = tensors({"inspect", (root / "iter_0000010").string(), "--json"});
  ASSERT_NE(latest, first);
  EXPECT_EQ(tensors({"inspect", root.path().string(), "--json"}), latest);
  EXPECT_EQ(tensors({"inspect", root.path().string(), "--json", "--iteration", "10"}), first);
  EXPECT_EQ(tensors({"inspect", (root / "iter_0000010" / ".metadata").string(), "--json"}), first);
  EXPECT_EQ(run_tool({"inspect", root.path().string(), "--iteration", "11"}).exit_code, 5);
  EXPECT_EQ(tensors({"inspect", root.path().string(), "--json", "--iteration", "latest"}), latest);
  for (const char* const spelling : {"0000010", "iter_0000010"})
    EXPECT_EQ(tensors({"inspect", root.path().string(), "--json", "--iteration", spelling}), first);
  for (const char* const wrong : {"0xa", "newest", "-10"})
    EXPECT_EQ(run_tool({"inspect", root.path().string(), "--iteration", wrong}).exit_code, 2)
        << wrong;
  EXPECT_EQ(run_tool({"diff", root.path().string(), root.path().string(), "--iteration-a",
                      "0000010", "--iteration-b", "10"})
                .exit_code,
            0);
  EXPECT_EQ(
      run_tool({"diff", root.path().string(), root.path().string(), "--iteration-a", "0000010"})
          .exit_code,
      1);
}

TEST(Tool, APolicySaysHowToOpenWhatIsLookedAt) {
  TempDir directory;
  const std::string policy = (directory / "zarr.yaml").string();
  std::ofstream(policy) << "version: 1\nload: {strategy: zarr}\n";
  for (const char* const command : {"inspect", "verify", "digest", "stats"}) {
    const ToolRun run = run_tool({command, path_of(kModel), "--policy", policy});
    EXPECT_EQ(run.exit_code, 1) << command;
    EXPECT_THAT(run.err, HasSubstr("load.strategy asks for 'zarr'"));
  }
}

TEST(Tool, AsAFunctionKnowsTheStrategiesOfItsProgram) {
  raw::register_strategy();
  std::vector<std::string> words = {"dckpt", "config", "check", "examples/raw_strategy/run.yaml"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(cli_main(static_cast<int>(arguments.size()), arguments.data()), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), StartsWith("OK"));
  struct sigaction pipe {};
  ASSERT_EQ(::sigaction(SIGPIPE, nullptr, &pipe), 0);
  EXPECT_EQ(pipe.sa_handler, SIG_DFL) << "the process belongs to the program";
  EXPECT_FALSE(set_log_sink({})) << "so does the log";
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(cli_main(static_cast<int>(arguments.size()), arguments.data()), 0) << "again";
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), StartsWith("OK"));
  EXPECT_EQ(run_tool({"config", "check", "examples/raw_strategy/run.yaml"}).exit_code, 6)
      << "the tool itself has no such strategy";
}

/// The elements are ±1e308, whose squares overflow, and the row of a tensor of integers is not
/// among the weights.
TEST(Tool, StatisticsThatAreNotFiniteAreDashes) {
  const TempDir directory;
  const std::string file = (directory / "model.safetensors").string();
  const std::string json = R"({"i":{"dtype":"I64","shape":[2],"data_offsets":[16,32]},)"
                           R"("w":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})";
  std::string content(1, static_cast<char>(json.size()));
  content.append(7, '\0').append(json);
  for (const double value : {1e308, -1e308, 0.0, 0.0})
    content.append(reinterpret_cast<const char*>(&value), sizeof(value));
  std::ofstream(file) << content;
  const ToolRun run = run_tool({"stats", file});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, AllOf(Not(HasSubstr("inf ")), Not(HasSubstr("nan")), HasSubstr("1e+308")));
  EXPECT_THAT(run.out, ::testing::ContainsRegex("\n +2 .* all weights \\(floats\\)\n"));
}

TEST(Tool, ClosedPipeIsNoFailureButAFullDiskIs) {
  const ToolRun piped = run_tool({"inspect", path_of(kModel), "--json"}, "| true");
  EXPECT_EQ(piped.exit_code, 0);
  const ToolRun full = run_tool({"inspect", path_of(kModel), "--json"}, ">/dev/full");
  EXPECT_EQ(full.exit_code, 3);
  EXPECT_THAT(full.err, HasSubstr("standard output"));
}

}  // namespace
}  // namespace dckpt::tool_test
