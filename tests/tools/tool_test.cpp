#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "dckpt/cli.h"
#include "dist_checkpointing/save/save.h"
#include "examples/raw_strategy/raw_strategy.h"
#include "mapping/state/sharded_tensor.h"
#include "tests/support/golden.h"
#include "tests/tools/run_tool.h"
#include "tools/dckpt/exit_code.h"

namespace dckpt {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::golden;
using testing::golden_expected;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::run_tool;
using ::testing::StartsWith;
using testing::ToolRun;

constexpr const char* kSynthetic = "mcore-0.14-synthetic";
constexpr const char* kModel = "mcore-0.14-flattened-tp2pp2dp2";

/// A copy that may be damaged.
struct Copy {
  explicit Copy(const std::string& name) {
    fs::copy(golden(name), path(), fs::copy_options::recursive);
  }
  fs::path path() const { return directory / "ckpt"; }
  std::string text() const { return path().string(); }
  TempDir directory;
};

std::string path_of(const std::string& name) {
  return golden(name).string();
}

std::vector<std::string> members(const Value& dict) {
  std::vector<std::string> names;
  for (const auto& [name, value] : dict.as_dict()) names.push_back(name.as_str());
  return names;
}

TEST(Tool, WithoutArgumentsGivesAnOverview) {
  const ToolRun run = run_tool({});
  EXPECT_EQ(run.exit_code, 0);
  for (const char* const command :
       {"inspect", "verify", "digest", "diff", "extract", "convert", "config", "formats"})
    EXPECT_THAT(run.out, HasSubstr(command));
  EXPECT_THAT(run.err, IsEmpty());
}

/// Runs `dckpt convert` with a signal that is already on its way. Returns the exit code.
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

TEST(Tool, ASignalStopsAConversionWhichRemovesWhatItHasBegun) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const TempDir directory;
    EXPECT_EQ(convert_under(signal, directory / "copy"), 128 + signal);
    EXPECT_TRUE(fs::is_empty(directory.path()));
  }
}

TEST(Tool, AFileThatMayNotGrowIsAnErrorThatLeavesNothing) {
  const TempDir directory;
  const fs::path target = directory / "copy";
  const std::string line = "ulimit -f 8; exec '" DCKPT_TOOL "' convert '" + path_of(kModel) +
                           "' '" + target.string() + "' >/dev/null 2>&1";
  const int status = std::system(line.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 3);
  EXPECT_TRUE(fs::is_empty(directory.path()));
}

TEST(Tool, EveryCommandExplainsItselfWithExamples) {
  for (const char* const command :
       {"inspect", "verify", "digest", "diff", "extract", "convert", "config", "formats"}) {
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
                                                {"config", "--help"}}) {
    std::istringstream lines(run_tool(words).out);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100u) << line;
  }
}

TEST(Tool, Version) {
  EXPECT_THAT(run_tool({"--version"}).out,
              ::testing::MatchesRegex("dckpt [0-9]+\\.[0-9]+\\.[0-9]+\n"));
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

TEST(Tool, InspectJsonHasTheDocumentedShape) {
  const ToolRun run = run_tool({"inspect", path_of(kSynthetic), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Value json = run.json();
  EXPECT_THAT(members(json),
              ElementsAre("format", "version", "producer", "run", "optimizer", "modelopt",
                          "readers", "groups", "tensors", "objects", "common", "files"));
  EXPECT_THAT(members(json.at("groups")),
              ElementsAre("weights", "optimizer", "RNG state", "extra state", "other objects"));
  EXPECT_EQ(json.at("format").as_str(), "torch_dist");
  EXPECT_EQ(json.at("version").as_int(), 1);
  EXPECT_THAT(members(json.at("tensors").items().front()),
              ElementsAre("key", "dtype", "shape", "bytes", "chunks", "flattened"));
  EXPECT_THAT(members(json.at("objects").items().front()), ElementsAre("key", "bytes"));
  const Value expected = golden_expected(kSynthetic);
  ASSERT_EQ(json.at("tensors").size(), expected.at("tensors").size());
  for (const Value& tensor : json.at("tensors").items()) {
    const Value& wanted = expected.at("tensors").at(tensor.at("key"));
    EXPECT_EQ(tensor.at("dtype"), wanted.at("dtype"));
    EXPECT_EQ(tensor.at("shape"), wanted.at("global_shape"));
    EXPECT_EQ(tensor.at("flattened"), wanted.at("flattened")) << tensor.at("key").as_str();
  }
  std::uint64_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(golden(kSynthetic)))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(json.at("files").size(), files);
}

TEST(Tool, InspectReadsForPeopleInEveryView) {
  for (const std::vector<std::string>& view : {std::vector<std::string>{},
                                               {"--tree"},
                                               {"--chunks"},
                                               {"--keys", "decoder.*", "--exclude", "*bias"}}) {
    std::vector<std::string> words = {"inspect", path_of(kModel)};
    words.insert(words.end(), view.begin(), view.end());
    const ToolRun run = run_tool(words);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("torch_dist version 1"), HasSubstr("final_layernorm"),
                               HasSubstr("__0_0.distcp"), Not(HasSubstr("\x1b"))));
  }
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

TEST(Tool, VerifyFindsProblemsAndListsThem) {
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

TEST(Tool, DigestAgreesWithTheProducer) {
  for (const char* const name : {kSynthetic, kModel, "dcp-fsdp2-tp", "mcore-head-moe-ep2"}) {
    const Value json = run_tool({"digest", path_of(name), "--json"}).json();
    const Value expected = golden_expected(name);
    EXPECT_THAT(members(json), ElementsAre("tensors", "objects"));
    ASSERT_EQ(json.at("tensors").size(), expected.at("tensors").size()) << name;
    for (const auto& [key, tensor] : json.at("tensors").as_dict()) {
      EXPECT_EQ(tensor.at("sha256"), expected.at("tensors").at(key).at("sha256"))
          << name << " " << key.as_str();
      EXPECT_EQ(tensor.at("shape"), expected.at("tensors").at(key).at("global_shape"));
      EXPECT_EQ(tensor.at("dtype"), expected.at("tensors").at(key).at("dtype"));
    }
  }
}

TEST(Tool, DiffEndsWithOneWhereSomethingDiffers) {
  const ToolRun same = run_tool({"diff", path_of(kModel), path_of(kModel)});
  EXPECT_EQ(same.exit_code, 0) << same.out;
  EXPECT_THAT(same.out, HasSubstr("equal"));
  const ToolRun other = run_tool({"diff", path_of(kModel), path_of("mcore-0.14-flattened-single")});
  EXPECT_EQ(other.exit_code, 1);
  const Value json =
      run_tool({"diff", path_of(kModel), path_of("mcore-0.14-flattened-single"), "--json"}).json();
  EXPECT_FALSE(json.at("equal").as_bool());
  EXPECT_GT(json.at("differences").size(), 0u);
}

TEST(Tool, ExtractGivesJsonOrATensorFile) {
  const Value expected = golden_expected(kSynthetic);
  EXPECT_EQ(members(run_tool({"extract", path_of(kSynthetic), "--objects"}).json()).size(),
            expected.at("objects").size());
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "--common"}).json().at("str"),
            expected.at("common").at("str"));
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "obj.ints/shard_2_4"}).out, "11002\n");

  const TempDir scratch;
  const std::string file = (scratch / "w.npy").string();
  ASSERT_EQ(run_tool({"extract", path_of(kSynthetic), "dtype.float32", "-o", file}).exit_code, 0);
  const std::string npy = testing::slurp(file);
  EXPECT_EQ(sha256_hex(as_bytes(npy).subspan(npy.size() - 48)),
            expected.at("tensors").at("dtype.float32").at("sha256").as_str());
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "dtype.float32", "-o", "-"}).out, npy);
}

TEST(Tool, ExtractExplainsWhatItCannotDo) {
  const TempDir scratch;
  const std::string file = (scratch / "w.npy").string();
  const ToolRun no_type = run_tool({"extract", path_of(kSynthetic), "dtype.bfloat16", "-o", file});
  EXPECT_EQ(no_type.exit_code, 6);
  EXPECT_THAT(no_type.err, HasSubstr(".safetensors"));
  EXPECT_TRUE(fs::is_empty(scratch.path())) << "nothing is left behind";
  const ToolRun slip = run_tool({"extract", path_of(kSynthetic), "dtype.bfloat61", "-o", file});
  EXPECT_EQ(slip.exit_code, 1);
  EXPECT_THAT(slip.err, HasSubstr("did you mean 'dtype.bfloat16'?"));
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "dtype.float32"}).exit_code, 2);
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "dtype.float32", "-o",
                      (scratch / "no" / "folder.npy").string()})
                .exit_code,
            3);
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

TEST(Tool, ConvertedCheckpointIsEqual) {
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

TEST(Tool, BucketsAreLaidOutForTheLayoutThatOptionsGive) {
  const TempDir scratch;
  const auto converted = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"convert", path_of(kModel), (scratch / "x").string(),
                                     "--optimizer", "dp_reshardable", "--dry-run"});
    return run_tool(options);
  };
  const ToolRun run =
      converted({"--transformer-impl", "local", "--tensor-parallel", "4", "--arg",
                 "overlap_grad_reduce=1", "--arg", "ddp_bucket_size=5000", "--data-parallel", "8"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("for TP 4, PP 2, DP 8 in buckets from 5,000 elements on"));
  const ToolRun lacking = converted({});
  EXPECT_EQ(lacking.exit_code, 2);
  EXPECT_THAT(lacking.err, HasSubstr("--arg transformer_impl="));
  for (const char* const wrong : {"data_parallel_size", "=3", "data_parallel_size=", "dp=3"})
    EXPECT_EQ(converted({"--transformer-impl", "local", "--arg", wrong}).exit_code, 2) << wrong;
  const ToolRun twice = converted({"--data-parallel", "8", "--arg", "data_parallel_size=8"});
  EXPECT_THAT(twice.err, HasSubstr("data_parallel_size is said twice"));
}

TEST(Tool, RankFoldersAreMadeForTheLayoutThatOptionsGive) {
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
        {"--to", "torch", "--data-parallel", "2"},
        {"--optimizer", "fully_reshardable", "--transformer-impl", "local"}}) {
    const ToolRun other = converted(words);
    EXPECT_EQ(other.exit_code, 2);
    EXPECT_THAT(other.err, AnyOf(HasSubstr("--pipeline-parallel is for --to torch"),
                                 HasSubstr("--data-parallel is for --optimizer dp_reshardable"),
                                 HasSubstr("--transformer-impl is for --to torch")));
  }
  EXPECT_FALSE(fs::exists(scratch / "x"));

  const ToolRun run = with({"--tensor-parallel", "2", "--pipeline-parallel", "2"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_TRUE(fs::exists(scratch / "x" / "mp_rank_01_001" / "model_optim_rng.pt"));
  EXPECT_EQ(run_tool({"verify", (scratch / "x").string(), "--deep"}).exit_code, 0);
  EXPECT_EQ(with({"--tensor-parallel", "2"}).exit_code, 7) << "it is there";
}

TEST(Tool, AConversionTakesAsManyJobsAsAreAskedForAndGoesOnWhereItWasInterrupted) {
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

TEST(Tool, InspectShowsWhatASaveTookIfItWasKept) {
  const ToolRun without = run_tool({"inspect", path_of(kModel), "--timing"});
  EXPECT_EQ(without.exit_code, 5);
  EXPECT_THAT(without.err, HasSubstr("save.report: true"));
  EXPECT_EQ(run_tool({"inspect", path_of(kModel), "--timing", "--tree"}).exit_code, 2);

  const TempDir directory;
  StateDict state;
  state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {1000}));
  save(state, directory / "a", {.report = true});
  const std::string kept = (directory / "a").string();
  const ToolRun shown = run_tool({"inspect", kept, "--timing"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  for (const char* const text :
       {"plan    not cached: first save\n", "engine  buffered\n", "\n  PHASE ", "\n  copy ",
        "part of write\n", "\n  publish ", "rank 0"})
    EXPECT_THAT(shown.out, HasSubstr(text));
  const Value json = run_tool({"inspect", kept, "--timing", "--json"}).json();
  EXPECT_EQ(json.at("phases").at("write").at("slowest_rank").as_int(), 0);
  std::ofstream(directory / "a" / "dckpt_report.json") << "{\"version\": 7}";
  EXPECT_EQ(run_tool({"inspect", kept, "--timing"}).exit_code, 6);
  EXPECT_EQ(run_tool({"verify", kept, "--deep"}).exit_code, 0) << "nothing else reads it";
}

/// A training root: iteration 10 complete, 20 without a data file, the tracker naming 20.
struct Root {
  Root() {
    for (const char* const name : {"iter_0000010", "iter_0000020"}) {
      fs::copy(golden(kModel), directory / name, fs::copy_options::recursive);
    }
    fs::remove(directory / "iter_0000020" / "__2_0.distcp");
    track(20);
  }
  void track(int iteration) {
    std::ofstream(directory / "latest_checkpointed_iteration.txt") << iteration;
  }
  std::string text() const { return directory.path().string(); }
  TempDir directory;
};

TEST(Tool, InspectHasARowForEachStateOfTheOptimizer) {
  const ToolRun run = run_tool({"inspect", path_of(kModel)});
  EXPECT_THAT(run.out, HasSubstr("float32   as weights        67  optimizer.state.exp_avg.* ×13  "
                                 "(flattened)\n"));
  EXPECT_THAT(run.out, Not(HasSubstr("optimizer.state.exp_avg.output_layer.weight")));
  EXPECT_THAT(run_tool({"inspect", path_of(kModel), "--unfold"}).out,
              HasSubstr("optimizer.state.exp_avg.output_layer.weight"));
}

TEST(Tool, APolicySaysHowToOpenWhatIsLookedAt) {
  TempDir directory;
  const std::string policy = (directory / "zarr.yaml").string();
  std::ofstream(policy) << "version: 1\nload: {strategy: zarr}\n";
  for (const char* const command : {"inspect", "verify", "digest"}) {
    const ToolRun run = run_tool({command, path_of(kModel), "--policy", policy});
    EXPECT_EQ(run.exit_code, 1) << command;
    EXPECT_THAT(run.err, HasSubstr("load.strategy asks for 'zarr'"));
  }
}

TEST(Tool, AnIterationOfALocalCheckpointCanBeChosen) {
  const std::string local = path_of("mcore-0.16-nvrx-local");
  EXPECT_EQ(run_tool({"verify", local, "--iteration", "10"}).exit_code, 0);
  const ToolRun other = run_tool({"verify", local, "--iteration", "11"});
  EXPECT_EQ(other.exit_code, 5);
  EXPECT_THAT(other.err, HasSubstr("there are no files of iteration 11, but of '10'"));
}

TEST(Tool, InspectOfARootSaysWhatARunTakes) {
  Root root;
  const ToolRun damaged = run_tool({"inspect", root.text()});
  EXPECT_THAT(damaged.out,
              AllOf(HasSubstr("resume       iter_0000010 (it is the newest complete iteration)"),
                    HasSubstr("'iter_0000020' is not used: '__2_0.distcp' is missing")));
  const Value json = run_tool({"inspect", root.text(), "--json"}).json();
  EXPECT_EQ(json.at("resume").at("directory").as_str(), "iter_0000010");
  EXPECT_EQ(json.at("resume").at("passed_over").size(), 1u);
  root.track(10);
  EXPECT_THAT(run_tool({"inspect", root.text()}).out,
              HasSubstr("resume       iter_0000010 (latest_checkpointed_iteration.txt names it)"));
  fs::remove(root.directory / "latest_checkpointed_iteration.txt");
  const ToolRun untracked = run_tool({"inspect", root.text()});
  EXPECT_EQ(untracked.exit_code, 5);
  EXPECT_THAT(untracked.err, HasSubstr("a run that starts here takes: iter_0000010"));
  EXPECT_THAT(run_tool({"inspect", path_of(kModel)}).out, Not(HasSubstr("resume  ")));
}

TEST(Tool, VerifyAllLooksAtEveryIterationOfARoot) {
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

TEST(Tool, DamageIsShownOncePerFile) {
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

TEST(Tool, AFileWithAWrongHashAndDamagedRecordsIsOneEntry) {
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

TEST(Tool, InspectFoldsKeysThatDifferInNumbersOnly) {
  const std::string row =
      "decoder.layers.mlp.experts.experts.linear_fc2._extra_state/shard_{0,1}.{0…3}_2.4 ×8";
  const std::string one = "linear_fc2._extra_state/shard_1.3_2.4";
  EXPECT_THAT(run_tool({"inspect", path_of("mcore-0.14-moe-ep2")}).out,
              AllOf(HasSubstr(row), Not(HasSubstr(one))));
  EXPECT_THAT(run_tool({"inspect", path_of("mcore-0.14-moe-ep2"), "--unfold"}).out,
              AllOf(HasSubstr(one), Not(HasSubstr("×"))));
  EXPECT_EQ(run_tool({"inspect", path_of(kModel), "--sort", "colour"}).exit_code, 2);
}

TEST(Tool, VeryManyKeysAreSummedUp) {
  const TempDir scratch;
  StateDict state;
  for (int i = 0; i < 300; ++i) {
    const std::string name = "block" + std::to_string(i);
    state[name] =
        ShardedTensor::whole("model." + name + ".weight", Tensor::zeros(DType::kFloat32, {1}));
  }
  save(state, scratch / "many");
  const std::string many = (scratch / "many").string();
  const ToolRun summary = run_tool({"inspect", many});
  EXPECT_THAT(summary.out, AllOf(HasSubstr("300 tensors  model\n"),
                                 HasSubstr("A summary of 300 tensors"), Not(HasSubstr("block7"))));
  EXPECT_THAT(run_tool({"inspect", many, "--unfold"}).out, HasSubstr("model.block299.weight\n"));
  EXPECT_THAT(run_tool({"inspect", many, "--sort", "size"}).out, HasSubstr("… and 100 more rows"));
  EXPECT_EQ(run_tool({"inspect", many, "--json"}).json().at("tensors").size(), 300u);
}

TEST(Tool, InspectShowsWhatARemovalHasLeft) {
  const Copy model(kModel);
  EXPECT_THAT(run_tool({"inspect", model.text()}).out,
              AllOf(HasSubstr("; fully_sharded_model_space\n"), Not(HasSubstr("unused"))));
  ASSERT_EQ(run_tool({"remove", model.text(), "--prefix", "optimizer"}).exit_code, 0);
  EXPECT_THAT(
      run_tool({"inspect", model.text()}).out,
      AllOf(
          HasSubstr("optimizer    not stored (the common state names fully_sharded_model_space)\n"),
          HasSubstr("of the data files, which no record takes\n")));
  const Value json = run_tool({"inspect", model.text(), "--json"}).json();
  std::int64_t unused = 0;
  for (const Value& file : json.at("files").items()) {
    if (const Value* bytes = file.find("unused")) unused += bytes->as_int();
  }
  EXPECT_GT(unused, 100'000);
}

TEST(Tool, AnEmptyCheckpointSaysSo) {
  const Copy model(kSynthetic);
  ASSERT_EQ(run_tool({"remove", model.text(), "--prefix", "d"}).exit_code, 0);
  const Value left = run_tool({"inspect", model.text(), "--json"}).json();
  for (const char* const list : {"tensors", "objects"}) {
    for (const Value& entry : left.at(list).items())
      run_tool({"remove", model.text(), "--prefix", entry.at("key").as_str()});
  }
  EXPECT_THAT(run_tool({"inspect", model.text()}).out, HasSubstr("no tensors and no objects"));
  const ToolRun verified = run_tool({"verify", model.text()});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("no tensors and no objects"));
}

TEST(Tool, ExtraStateIsExtractedAsItsBytes) {
  const TempDir scratch;
  const std::string file = (scratch / "state.bin").string();
  const Value expected = golden_expected("mcore-0.14-moe-ep2").at("objects");
  const auto sha256 = [&](const std::string& key) {
    EXPECT_EQ(run_tool({"extract", path_of("mcore-0.14-moe-ep2"), key, "-o", file}).exit_code, 0);
    return sha256_hex(as_bytes(testing::slurp(file)));
  };
  const std::string bytes_io = "decoder.layers.self_attention.linear_proj._extra_state/shard_0_2";
  const std::string tensor = "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2";
  EXPECT_EQ(sha256(bytes_io), expected.at(bytes_io).at("__BytesIO__").at("sha256").as_str());
  EXPECT_EQ(sha256(tensor), expected.at(tensor).at("__tensor__").at("sha256").as_str());
  const std::string json = (scratch / "state.json").string();
  EXPECT_EQ(run_tool({"extract", path_of("mcore-0.14-moe-ep2"), tensor, "-o", json}).exit_code, 0);
  EXPECT_THAT(testing::slurp(json), HasSubstr("__tensor__"));
}

TEST(Tool, AsAFunctionKnowsTheStrategiesOfItsProgram) {
  raw::register_strategy();
  std::vector<std::string> words = {"dckpt", "config", "check", "examples/raw_strategy/run.yaml"};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(cli_main(static_cast<int>(arguments.size()), arguments.data()), 0);
  EXPECT_THAT(::testing::internal::GetCapturedStdout(), StartsWith("OK"));
  EXPECT_EQ(run_tool({"config", "check", "examples/raw_strategy/run.yaml"}).exit_code, 6)
      << "the tool itself has no such strategy";
}

TEST(Tool, ClosedPipeIsNoFailureButAFullDiskIs) {
  const ToolRun piped = run_tool({"inspect", path_of(kModel), "--json"}, "| true");
  EXPECT_EQ(piped.exit_code, 0);
  const ToolRun full = run_tool({"inspect", path_of(kModel), "--json"}, ">/dev/full");
  EXPECT_EQ(full.exit_code, 3);
  EXPECT_THAT(full.err, HasSubstr("standard output"));
}

}  // namespace
}  // namespace dckpt
