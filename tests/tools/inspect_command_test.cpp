#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "dist_checkpointing/save/save.h"
#include "mapping/state/sharded_tensor.h"
#include "tests/support/golden.h"
#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::inspect_command_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::Copy;
using ::testing::ElementsAre;
using testing::golden;
using testing::golden_expected;
using ::testing::HasSubstr;
using testing::kModel;
using testing::kSynthetic;
using ::testing::Not;
using testing::path_of;
using testing::Root;
using testing::run_tool;
using testing::ToolRun;

std::vector<std::string> members(const Value& dict) {
  std::vector<std::string> names;
  for (const auto& [name, value] : dict.as_dict()) names.push_back(name.as_str());
  return names;
}

TEST(ToolInspect, InspectJsonHasTheDocumentedShape) {
  const ToolRun run = run_tool({"inspect", path_of(kSynthetic), "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Value json = run.json();
  EXPECT_THAT(members(json), ElementsAre("format", "version", "producer", "run", "optimizer",
                                         "modelopt", "readers", "groups", "tensors", "objects",
                                         "common", "files", "data_files", "findings"));
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

TEST(ToolInspect, InspectReadsForPeopleInEveryView) {
  for (const std::vector<std::string>& view :
       {std::vector<std::string>{}, {"--chunks"}, {"--keys", "decoder.*", "--exclude", "*bias"}}) {
    std::vector<std::string> words = {"inspect", path_of(kModel)};
    words.insert(words.end(), view.begin(), view.end());
    const ToolRun run = run_tool(words);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    EXPECT_THAT(run.out, AllOf(HasSubstr("torch_dist version 1"), HasSubstr("final_layernorm"),
                               HasSubstr("__0_0.distcp"), Not(HasSubstr("\x1b"))));
  }
}

TEST(ToolInspect, InspectShowsWhatASaveTookIfItWasKept) {
  const ToolRun without = run_tool({"inspect", path_of(kModel), "--timing"});
  EXPECT_EQ(without.exit_code, 5);
  EXPECT_THAT(without.err, HasSubstr("save.report: true"));
  EXPECT_EQ(run_tool({"inspect", path_of(kModel), "--timing", "--unfold"}).exit_code, 2);

  const TempDir directory;
  StateDict state;
  state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {1000}));
  save(state, directory / "a", {.report = true});
  const std::string kept = (directory / "a").string();
  const ToolRun shown = run_tool({"inspect", kept, "--timing"});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  for (const char* const text :
       {"plan    not cached: first save\n", "engine  buffered\n", "\n  PHASE ", "  START ",
        "\n  plan ", "\n    copy ", "\n  publish "})
    EXPECT_THAT(shown.out, HasSubstr(text));
  const Value json = run_tool({"inspect", kept, "--timing", "--json"}).json();
  EXPECT_EQ(json.at("phases").at("write").at("slowest_rank").as_int(), 0);
  std::ofstream(directory / "a" / "dckpt_report.json") << "{\"version\": 7}";
  EXPECT_EQ(run_tool({"inspect", kept, "--timing"}).exit_code, 6);
  EXPECT_EQ(run_tool({"verify", kept, "--deep"}).exit_code, 0) << "nothing else reads it";
}

TEST(ToolInspect, InspectHasARowForEachStateOfTheOptimizer) {
  const ToolRun run = run_tool({"inspect", path_of(kModel)});
  EXPECT_THAT(run.out, HasSubstr("float32   as weights        67  optimizer.state.exp_avg.* ×13  "
                                 "(flattened)\n"));
  EXPECT_THAT(run.out, Not(HasSubstr("optimizer.state.exp_avg.output_layer.weight")));
  EXPECT_THAT(run_tool({"inspect", path_of(kModel), "--unfold"}).out,
              HasSubstr("optimizer.state.exp_avg.output_layer.weight"));
}

TEST(ToolInspect, AnIterationOfALocalCheckpointCanBeChosen) {
  const std::string local = path_of("mcore-0.16-nvrx-local");
  EXPECT_EQ(run_tool({"verify", local, "--iteration", "10"}).exit_code, 0);
  const ToolRun other = run_tool({"verify", local, "--iteration", "11"});
  EXPECT_EQ(other.exit_code, 5);
  EXPECT_THAT(other.err, HasSubstr("no files for iteration 11; found those of '10'"));
}

TEST(ToolInspect, InspectOfARootSaysWhatARunTakes) {
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

TEST(ToolInspect, InspectSaysWhichDataFilesAreMissingCutOrNotReferredTo) {
  const Copy copy(kModel);
  fs::remove(copy.path() / "__2_0.distcp");
  fs::remove(copy.path() / "__3_0.distcp");
  fs::resize_file(copy.path() / "__1_0.distcp", 5000);
  fs::copy(copy.path() / "__0_0.distcp", copy.path() / "__9_9.distcp");
  const ToolRun run = run_tool({"inspect", copy.text()});
  EXPECT_EQ(run.exit_code, 0);
  EXPECT_THAT(run.out, AllOf(HasSubstr("data files are missing: '__2_0.distcp', '__3_0.distcp'; "),
                             HasSubstr("'__1_0.distcp' has"), HasSubstr("it is truncated"),
                             HasSubstr("dckpt verify"), HasSubstr("not used     '__9_9.distcp'")));
  const Value files = run_tool({"inspect", copy.text(), "--json"}).json().at("data_files");
  EXPECT_EQ(files.at("missing").size(), 2u);
  const Value& truncated = files.at("truncated").items().front();
  EXPECT_EQ(truncated.at("name").as_str(), "__1_0.distcp");
  EXPECT_EQ(truncated.at("bytes").as_int(), 5000);
  EXPECT_GT(truncated.at("needed").as_int(), 5000);
  EXPECT_EQ(files.at("unreferenced").items().front().as_str(), "__9_9.distcp");
  EXPECT_THAT(run_tool({"inspect", path_of(kModel)}).out,
              AllOf(Not(HasSubstr("incomplete  ")), Not(HasSubstr("not used  "))));
}

TEST(ToolInspect, InspectFoldsKeysThatDifferInNumbersOnly) {
  const std::string row =
      "decoder.layers.mlp.experts.experts.linear_fc2._extra_state/shard_{0,1}.{0…3}_2.4 ×8";
  const std::string one = "linear_fc2._extra_state/shard_1.3_2.4";
  EXPECT_THAT(run_tool({"inspect", path_of("mcore-0.14-moe-ep2")}).out,
              AllOf(HasSubstr(row), Not(HasSubstr(one))));
  EXPECT_THAT(run_tool({"inspect", path_of("mcore-0.14-moe-ep2"), "--unfold"}).out,
              AllOf(HasSubstr(one), Not(HasSubstr("×"))));
  EXPECT_EQ(run_tool({"inspect", path_of(kModel), "--sort", "colour"}).exit_code, 2);
}

TEST(ToolInspect, VeryManyKeysAreSummedUp) {
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
  EXPECT_THAT(summary.out, AllOf(HasSubstr("  300 tensors  model.*\n"),
                                 HasSubstr("A summary of 300 tensors"), Not(HasSubstr("block7"))));
  EXPECT_THAT(run_tool({"inspect", many, "--unfold"}).out, HasSubstr("model.block299.weight\n"));
  EXPECT_THAT(run_tool({"inspect", many, "--sort", "size"}).out, HasSubstr("… and 100 more rows"));
  EXPECT_EQ(run_tool({"inspect", many, "--json"}).json().at("tensors").size(), 300u);
}

TEST(ToolInspect, InspectShowsWhatARemovalHasLeft) {
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

TEST(ToolInspect, AnEmptyCheckpointSaysSo) {
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

TEST(ToolInspect, OptionsOfATableAreRefusedWhereThereIsNone) {
  const std::vector<std::vector<std::string>> pairs = {{"--json", "--unfold"},
                                                       {"--json", "--sort=size"}};
  for (const std::vector<std::string>& pair : pairs)
    EXPECT_EQ(run_tool({"inspect", path_of(kModel), pair[0], pair[1]}).exit_code, 2) << pair[1];
}

TEST(ToolExplain, PolicyAndSettingsAreNotIgnored) {
  const std::string key = "decoder.final_layernorm.weight";
  EXPECT_THAT(run_tool({"explain", path_of(kModel), key, "--policy", "nothing"}).err,
              HasSubstr("no policy 'nothing' is shipped"));
  EXPECT_THAT(run_tool({"explain", path_of(kModel), key, "--set", "vocab_size=3"}).err,
              HasSubstr("add its name"));
}

}  // namespace
}  // namespace dckpt::inspect_command_test
