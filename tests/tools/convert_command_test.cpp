#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::convert_command_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using testing::kModel;
using testing::path_of;
using testing::run_tool;
using testing::ToolRun;

/// Runs `dckpt convert` with a signal already pending. Returns the exit code.
int convert_under(int signal, const fs::path& target) {
  const std::string source = path_of(kModel);
  const std::string destination = target.string();
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(signal, SIG_DFL);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, signal);
    ::sigprocmask(SIG_BLOCK, &blocked, nullptr);
    ::kill(::getpid(), signal);
    ::execl(DCKPT_TOOL, "dckpt", "convert", source.c_str(), destination.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(ToolConvert, ASignalStopsAConversionWhichRemovesWhatItHasBegun) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const TempDir directory;
    EXPECT_EQ(convert_under(signal, directory / "copy"), 128 + signal);
    EXPECT_TRUE(fs::is_empty(directory.path()));
  }
}

/// The floats have 4 bits, two per byte, with scales.
TEST(ToolConvert, FloatsOfFourBitsAreListedVerifiedAndCopied) {
  const TempDir directory;
  const std::string file = (directory / "model.safetensors").string();
  const std::string copy = (directory / "copy").string();
  const std::string back = (directory / "back").string();
  const std::string json = R"({"s":{"dtype":"F8_E8M0","shape":[2,1],"data_offsets":[32,34]},)"
                           R"("w":{"dtype":"F4","shape":[2,32],"data_offsets":[0,32]}})";
  std::string content(1, static_cast<char>(json.size()));
  content.append(7, '\0').append(json);
  for (int i = 0; i < 34; ++i) content += static_cast<char>(i);
  std::ofstream(file) << content;
  const ToolRun listed = run_tool({"inspect", file});
  EXPECT_EQ(listed.exit_code, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("float4_e2m1fn_x2"));
  EXPECT_EQ(run_tool({"verify", file}).exit_code, 0);
  ASSERT_EQ(run_tool({"convert", file, copy, "--to", "dcp"}).exit_code, 0);
  ASSERT_EQ(run_tool({"convert", copy, back, "--to", "safetensors"}).exit_code, 0);
  EXPECT_EQ(run_tool({"diff", file, back}).exit_code, 0);
  std::ifstream again(fs::path(back) / "model.safetensors", std::ios::binary);
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(again), {}),
              HasSubstr(R"("w":{"dtype":"F4","shape":[2,32])"));
}

TEST(ToolConvert, AFileThatMayNotGrowIsAnErrorThatLeavesNothing) {
  const TempDir directory;
  const fs::path target = directory / "copy";
  const std::string line = "ulimit -f 8; exec '" DCKPT_TOOL "' convert '" + path_of(kModel) +
                           "' '" + target.string() + "' >/dev/null 2>&1";
  const int status = std::system(line.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(ToolConvert, WorksWhereNoThreadCanBeStarted) {
  const TempDir directory;
  const std::string source = path_of(kModel);
  const std::string target = (directory / "copy").string();
  const std::string said = (directory / "said").string();
  // The stack of each thread is set to 64 TiB, which no address space has.
  const std::string line = "ulimit -s 68719476736 || exit 77; exec '" DCKPT_TOOL "' convert '" +
                           source + "' '" + target + "' >/dev/null 2>'" + said + "'";
  const int code = WEXITSTATUS(std::system(line.c_str()));
  if (code == 77) GTEST_SKIP() << "the hard limit of stacks is lower";
  EXPECT_EQ(code, 0) << testing::slurp(said);
  EXPECT_THAT(testing::slurp(said), HasSubstr("no thread could be started"));
  EXPECT_EQ(run_tool({"diff", source, target}).exit_code, 0);
}

TEST(ToolConvert, ConvertedCheckpointIsEqual) {
  const TempDir scratch;
  const std::string result = (scratch / "plain").string();
  const ToolRun dry =
      run_tool({"convert", path_of(kModel), result, "--to", "dcp", "--ranks", "3", "--dry-run"});
  EXPECT_EQ(dry.exit_code, 0) << dry.err;
  EXPECT_FALSE(fs::exists(result));
  const ToolRun run =
      run_tool({"convert", path_of(kModel), result, "--to", "dcp", "--ranks", "3", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.json().at("to").as_str(), "dcp");
  EXPECT_EQ(run_tool({"verify", result, "--deep"}).exit_code, 0);
  EXPECT_EQ(run_tool({"digest", result, "--json"}).json().at("tensors"),
            run_tool({"digest", path_of(kModel), "--json"}).json().at("tensors"));
  EXPECT_EQ(run_tool({"convert", path_of(kModel), result}).exit_code, 7)
      << "an existing directory is not replaced";
  EXPECT_EQ(run_tool({"convert", path_of(kModel), (scratch / "x").string(), "--max-memory", "lots"})
                .exit_code,
            2);
  EXPECT_EQ(run_tool({"convert", path_of(kModel), (scratch / "x").string(), "--to", "nonsense"})
                .exit_code,
            6);
}

TEST(ToolConvert, AManifestIsWrittenWhereItIsNeededUnlessSomebodyTakesItOut) {
  const TempDir directory;
  const auto has_manifest = [&](std::vector<std::string> options) {
    const std::string target = (directory / "copy").string();
    options.insert(options.begin(), {"convert", path_of(kModel), target, "--overwrite"});
    EXPECT_EQ(run_tool(options).exit_code, 0);
    return fs::exists(directory / "copy" / "integrity.json");
  };
  EXPECT_FALSE(has_manifest({}));
  EXPECT_TRUE(has_manifest({"--integrity"}));
  EXPECT_TRUE(has_manifest({"--to", "zarr", "--exclude", "optimizer.*"}));
  EXPECT_FALSE(has_manifest({"--to", "zarr", "--exclude", "optimizer.*", "--no-integrity"}));
  EXPECT_EQ(run_tool({"convert", path_of(kModel), "x", "--integrity", "--no-integrity"}).exit_code,
            2);
}

TEST(ToolConvert, RankFoldersAreMadeForTheLayoutThatOptionsGive) {
  const TempDir scratch;
  const auto converted = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", path_of(kModel), (scratch / "x").string(),
                                     "--exclude", "optimizer*"});
    return run_tool(options);
  };
  const std::vector<std::string> good{"--to", "torch", "--transformer-impl", "local"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), good.begin(), good.end());
    return converted(more);
  };
  for (const char* const wrong : {"0", "-2", "two"})
    EXPECT_EQ(with({"--tensor-parallel", wrong}).exit_code, 2) << wrong;
  const ToolRun odd = with({"--tensor-parallel", "3"});
  EXPECT_EQ(odd.exit_code, 2);
  EXPECT_THAT(odd.err, HasSubstr("--tensor-parallel"));
  EXPECT_EQ(converted({"--to", "torch", "--transformer-impl", "te"}).exit_code, 2);
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{"--to", "dcp", "--pipeline-parallel", "2"},
        {"--pipeline-parallel", "2"},
        {"--optimizer", "fully_reshardable", "--transformer-impl", "local"}}) {
    const ToolRun other = converted(words);
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.err, AnyOf(HasSubstr("--pipeline-parallel is for --to torch"),
                                 HasSubstr("--transformer-impl is for --to torch")));
  }
  EXPECT_FALSE(fs::exists(scratch / "x"));

  const ToolRun run = with({"--tensor-parallel", "2", "--pipeline-parallel", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(fs::exists(scratch / "x" / "mp_rank_01_001" / "model_optim_rng.pt"));
  EXPECT_EQ(run_tool({"verify", (scratch / "x").string(), "--deep"}).exit_code, 0);
  EXPECT_EQ(with({"--tensor-parallel", "2"}).exit_code, 7) << "it is there";
}

TEST(ToolConvert, AConversionTakesAsManyJobsAsAreAskedForAndGoesOnWhereItWasInterrupted) {
  const TempDir scratch;
  const auto converted = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", path_of(kModel), (scratch / "x").string()});
    return run_tool(options);
  };
  for (const char* const jobs : {"0", "-1", "1.5", "many", "4096", ""})
    EXPECT_EQ(converted({"--jobs", jobs}).exit_code, 2) << jobs;
  const ToolRun one = converted({"--jobs", "1", "--resume", "--json"});
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_EQ(one.json().at("kept_files").as_int(), 0);
  EXPECT_THAT(one.out, HasSubstr("nothing to resume"));
  EXPECT_EQ(converted({"--resume"}).exit_code, 7) << "it is complete";
}

TEST(ToolConvert, FormsThatTheFormatOrTheSourceDoesNotHaveAreNotTakenSilently) {
  const std::string model = (fs::path(DCKPT_TEST_DATA) / "hf_pairs" / "qwen3" / "mcore").string();
  const auto dry = [](const std::string& source, std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", source, "/nonexistent/x", "--dry-run"});
    return run_tool(std::move(options));
  };
  EXPECT_EQ(dry(model, {"--to", "torch", "--compat", "megatron-0.19"}).exit_code, 6);
  EXPECT_EQ(
      dry(path_of(kModel), {"--optimizer", "fully_sharded_model_space", "--flattened", "boxes"})
          .exit_code,
      2);
  const TempDir scratch;
  EXPECT_THAT(
      run_tool({"convert", model, (scratch / "x").string(), "--dry-run", "--flattened", "megatron"})
          .out,
      HasSubstr("--flattened megatron had no effect"));
}

TEST(ToolConvert, AConversionIsExplainedStepByStep) {
  const TempDir scratch;
  const std::string copy = (scratch / "copy").string();
  const std::vector<std::string> call = {"convert", path_of(kModel), copy, "--to", "dcp"};
  const auto with = [&](std::vector<std::string> options) {
    options.insert(options.begin(), call.begin(), call.end());
    return run_tool(std::move(options));
  };
  const ToolRun run = with({"--explain"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("1  format        chooses 'dcp'\n"));
  EXPECT_THAT(run.out, HasSubstr("3  common state  keeps the common state as an object\n"
                                 "                 note: "));
  EXPECT_THAT(run.out, HasSubstr("dry run: nothing was written"));
  EXPECT_FALSE(fs::exists(copy));
  const Value steps = with({"--explain", "--json"}).json().at("steps");
  EXPECT_EQ(steps.items().front().at("does").as_str(), "chooses 'dcp'");
  EXPECT_EQ(with({"--explain", "--dry-run"}).exit_code, 2);
}

TEST(ToolConvert, ADryRunRefusesAFileAsDestinationAsTheConversionDoes) {
  const TempDir scratch;
  const std::string file = (scratch / "file").string();
  std::ofstream(file) << "kept";
  for (const char* const option : {"--dry-run", "--trust-source"}) {
    const ToolRun run = run_tool({"convert", path_of(kModel), file, "--overwrite", option});
    EXPECT_EQ(run.exit_code, 7) << option;
    EXPECT_THAT(run.err, HasSubstr("not a directory; choose another name"));
  }
}

}  // namespace
}  // namespace dckpt::convert_command_test
