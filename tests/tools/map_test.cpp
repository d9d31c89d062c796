#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/run_tool.h"

namespace dckpt::map_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::run_tool;
using ::testing::StartsWith;
using testing::ToolRun;

std::string pair(const std::string& name, const std::string& side) {
  return (std::filesystem::path(DCKPT_TEST_DATA) / "hf_pairs" / name / side).string();
}

TEST(ToolMap, KeysChangeThereAndBack) {
  const TempDir scratch;
  const std::string hf = (scratch / "hf").string();
  const std::string back = (scratch / "back").string();
  const ToolRun there = run_tool({"convert", pair("gpt2", "mcore"), hf, "--to", "torch_dist",
                                  "--map", "gpt2", "--set", "vocab_size=100", "--roundtrip-check"});
  ASSERT_EQ(there.exit_code, 0) << there.err;
  EXPECT_THAT(
      there.out,
      AllOf(HasSubstr("keys: Megatron's (homogeneous) became Hugging Face's, by the map 'gpt2'"),
            HasSubstr("parameters: 64,512 and 1,344 that pad the vocabulary before, 64,512 "
                      "after"),
            HasSubstr("_extra_state' (2 keys), as Hugging Face files have no objects"),
            HasSubstr("dropped: the common state")));
  const ToolRun again = run_tool({"convert", hf, back, "--to", "torch_dist", "--map", "gpt2",
                                  "--set", "num_attention_heads=4", "--set", "vocab_size=100"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(
      run_tool({"diff", back, pair("gpt2", "mcore"), "--no-common", "--exclude", "*._extra_state"})
          .exit_code,
      0);
  EXPECT_EQ(run_tool({"diff", pair("gpt2", "mcore"), hf, "--map", "gpt2", "--set", "vocab_size=100",
                      "--no-common"})
                .exit_code,
            0);
}

/// A trainer has the names of its Hugging Face files, and rows in another order. Format and --to
/// tell the direction; where they do not, --set from does.
TEST(ToolMap, TheDirectionOfAMapWithTheSameNamesOnBothSidesIsNotGuessed) {
  const TempDir scratch;
  const std::string map = (scratch / "same.yaml").string();
  std::ofstream(map)
      << "version: 1\nfamily: same\ntensors:\n"
         "  - {megatron: \"{l}.w\", hf: \"{l}.w\", transform: {rope_interleave: 1}}\n";
  const std::string hf = (scratch / "hf").string(), trainer = (scratch / "trainer").string(),
                    back = (scratch / "back").string(), dcp = (scratch / "dcp").string();
  std::filesystem::create_directory(hf);
  std::ofstream(hf + "/config.json") << "{}";
  const std::string header = R"({"0.w":{"dtype":"U8","shape":[6,1],"data_offsets":[0,6]}})";
  std::ofstream(hf + "/model.safetensors", std::ios::binary)
      << static_cast<char>(header.size()) << std::string(7, '\0') << header << "abcdef";
  const auto convert = [&](const std::string& from, const std::string& to,
                           const std::string& format, const std::string& setting) {
    return run_tool({"convert", from, to, "--to", format, "--map", map, "--set",
                     "layout=non-homogeneous", "--set", setting, "--roundtrip-check"});
  };
  const auto rows = [&](const std::string& checkpoint) {
    run_tool({"extract", checkpoint, "0.w", "-o", checkpoint + ".npy"});
    std::ifstream file(checkpoint + ".npy", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const ToolRun there = convert(hf, trainer, "torch_dist", "extra_state=none");
  ASSERT_EQ(there.exit_code, 0) << there.err;
  EXPECT_THAT(rows(trainer), HasSubstr("adbecf"));
  ASSERT_EQ(convert(trainer, back, "hf", "extra_state=none").exit_code, 0);
  EXPECT_EQ(run_tool({"diff", hf, back, "--no-common"}).exit_code, 0);
  const ToolRun unclear = convert(hf, dcp, "hf", "extra_state=none");
  EXPECT_EQ(unclear.exit_code, 2);
  EXPECT_THAT(unclear.err, HasSubstr("add the setting from=hf if"));
  EXPECT_EQ(convert(hf, dcp, "hf", "from=megatron").exit_code, 0);
  EXPECT_THAT(rows(dcp), HasSubstr("acebdf"));
  for (const char* const command : {"inspect", "digest"})
    EXPECT_EQ(run_tool({command, hf, "--map", map}).exit_code, 0);
  EXPECT_EQ(run_tool({"diff", hf, trainer, "--map", map, "--set", "layout=non-homogeneous",
                      "--no-common"})
                .exit_code,
            0);
  EXPECT_THAT(run_tool({"explain", hf, "0.w", "--map", map}).out, HasSubstr("Map same"));
}

TEST(ToolMap, TwoSidesWithTheSameNamesAreBothMapped) {
  const std::string hf = pair("qwen2", "hf");
  const ToolRun same = run_tool({"diff", hf, hf, "--map", "qwen2", "--json"});
  ASSERT_EQ(same.exit_code, 0) << same.err;
  EXPECT_TRUE(same.json().at("equal").as_bool());
  EXPECT_GT(same.json().at("tensors_compared").as_int(), 0);
}

TEST(ToolMap, ExplainNamesTheRow) {
  const ToolRun run = run_tool(
      {"explain", pair("qwen2", "hf"), "model.layers.0.mlp.up_proj.weight", "--map", "auto"});
  EXPECT_THAT(run.out, AllOf(HasSubstr("Map qwen2\n"),
                             HasSubstr("decoder.layers.{l}.mlp.linear_fc1.weight (llama:"),
                             HasSubstr("decoder.layers.mlp.linear_fc1.weight\n")));
  const ToolRun json = run_tool({"explain", pair("qwen2", "mcore"), "model.norm.weight", "--map",
                                 "qwen2", "--set", "vocab_size=100", "--json"});
  EXPECT_THAT(json.out, HasSubstr("\"from\": [\n      \"decoder.final_layernorm.weight\"\n    ]"));
}

TEST(ToolMap, WhatDoesNotFitIsListedAndNothingWritten) {
  const TempDir scratch;
  const std::string to = (scratch / "out").string();
  const ToolRun other = run_tool({"convert", pair("mixtral", "mcore"), to, "--map", "qwen2"});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, AllOf(HasSubstr("not in the map: 'decoder.layers.mlp.router.weight'"),
                               HasSubstr("missing: 'decoder.layers.mlp.linear_fc1.weight'")));
  EXPECT_EQ(run_tool({"convert", pair("mixtral", "mcore"), to, "--map", "mixtrel"}).exit_code, 2);
  EXPECT_EQ(run_tool({"convert", pair("mixtral", "mcore"), to, "--set", "vocab_size=1"}).exit_code,
            2);
  EXPECT_EQ(run_tool({"convert", pair("mixtral", "mcore"), to, "--roundtrip-check"}).exit_code, 2);
  EXPECT_FALSE(std::filesystem::exists(to));
}

TEST(ToolMap, WeightsAreCastAndConfigJsonSaysSo) {
  const TempDir scratch;
  const std::string wide = (scratch / "wide").string();
  const std::string back = (scratch / "back").string();
  const auto convert = [](const std::string& from, const std::string& to, const std::string& dtype,
                          const std::string& names) {
    return run_tool({"convert", from, to, "--to", "hf", "--map", "llama", "--model-files",
                     pair("qwen2", "hf"), "--set", names, "--dtype", dtype, "--roundtrip-check"});
  };
  const ToolRun run = convert(pair("qwen2", "mcore"), wide, "float32", "keys=hf");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("bfloat16 tensors became float32\n"));
  std::ifstream config(std::filesystem::path(wide) / "config.json");
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(config), {}),
              HasSubstr("\"dtype\": \"float32\""));
  ASSERT_EQ(convert(wide, back, "bfloat16", "keys=hf").exit_code, 0);
  EXPECT_EQ(run_tool({"diff", back, pair("qwen2", "hf")}).exit_code, 0);
  for (const char* const none : {"", "none"}) {
    std::vector<std::string> words{"convert", wide, back, "--dtype", "float16"};
    if (*none != '\0') words.insert(words.end(), {"--map", none});
    const ToolRun alone = run_tool(words);
    EXPECT_EQ(alone.exit_code, 2) << none;
    EXPECT_THAT(alone.err, HasSubstr("are those of a map; add its name (--map)")) << none;
  }
}

TEST(ToolMap, LayersAreLeftOutBeforeTheMap) {
  const TempDir scratch;
  const std::string to = (scratch / "out").string();
  const auto convert = [&](const std::string& pattern) {
    return run_tool({"convert", pair("qwen2", "hf"), to, "--to", "torch_dist", "--map", "auto",
                     "--set", "num_layers=1", "--exclude", "model.layers.1.*", "--exclude", pattern,
                     "--roundtrip-check"});
  };
  const ToolRun typo = convert("model.nrom.*");
  EXPECT_EQ(typo.exit_code, 2);
  EXPECT_THAT(typo.err, HasSubstr("no key matches the pattern 'model.nrom.*'"));
  const ToolRun run = convert("model.norm.*");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, HasSubstr("left out before the map: 13 keys, 'model.layers.1."));
  EXPECT_THAT(run_tool({"inspect", to}).out, HasSubstr("decoder.layers.mlp.linear_fc2.weight"));
}

TEST(ToolMap, AdviceToMergeOrJoinNamesOptionsThatTheyHave) {
  const TempDir scratch;
  const auto file = [&](const std::string& name) { return (scratch / name).string(); };
  const std::string model = pair("qwen2", "hf");
  for (const std::string name : {"a", "b"}) {
    const ToolRun run =
        run_tool({"convert", model, file(name), "--to", "safetensors", "--map", "none"});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    std::filesystem::remove(scratch / name / "config.json");
  }
  const auto merge = [&](const std::string& option, const std::string& value) {
    return run_tool(
        {"merge", file("a"), file("b"), "-o", file("to"), "--overwrite", option, value});
  };
  EXPECT_THAT(merge("--to", "hf").out, HasSubstr("give the folder that has it with --model-files"));
  const ToolRun with = merge("--model-files", model);
  EXPECT_EQ(with.exit_code, 0) << with.err;
  EXPECT_EQ(testing::slurp(scratch / "to" / "config.json"),
            testing::slurp(std::filesystem::path(model) / "config.json"));
  for (const std::string format : {"torch", "fsdp_dtensor"}) {
    const ToolRun refused = merge("--to", format);
    EXPECT_EQ(refused.exit_code, 6);
    EXPECT_THAT(refused.err, HasSubstr("--map is an option of dckpt convert: convert each"));
  }
  ASSERT_EQ(merge("--to", "dcp").exit_code, 0);
  EXPECT_EQ(run_tool({"convert", file("to"), file("fsdp"), "--to", "fsdp_dtensor", "--map", "qwen2",
                      "--model-files", model})
                .exit_code,
            0);
}

TEST(ToolMap, AnAdapterIsMergedBeforeTheMap) {
  const TempDir scratch;
  const std::string to = (scratch / "out").string();
  const std::string data = DCKPT_TEST_DATA "/adapters/";
  const auto convert = [&](const std::string& adapter, const std::string& how) {
    return run_tool({"convert", data + "llama/base", to, "--to", "torch_dist", "--map", "llama",
                     "--merge-adapter", adapter, how});
  };
  const ToolRun plan = convert(data + "llama/adapter", "--explain");
  ASSERT_EQ(plan.exit_code, 0) << plan.err;
  EXPECT_THAT(plan.out, AllOf(HasSubstr("adapter  "), HasSubstr("merges 6 modules"),
                              HasSubstr("merged the adapter into 6 tensors")));
  const ToolRun json = convert(data + "llama/adapter", "--json");
  ASSERT_EQ(json.exit_code, 0) << json.err;
  EXPECT_EQ(json.json().at("findings").items()[0].at("code"), Value("adapter-merged"));
  const ToolRun again = convert(data + "llama/adapter", "--json");
  EXPECT_EQ(again.exit_code, 7);
  const ToolRun other = convert(data + "gpt2/adapter", "--dry-run");
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.err, HasSubstr("the adapter does not fit this model"));
  EXPECT_EQ(convert(data, "--dry-run").exit_code, 5);
  EXPECT_EQ(convert(data + "nowhere", "--dry-run").exit_code, 3);
}

TEST(ToolMap, ConfigChecksAndShowsMaps) {
  const TempDir scratch;
  const std::string file = (scratch / "m.yaml").string();
  std::ofstream(file) << "version: 1\nextends: llama\nfamily: mine\ntensors:\n"
                         "  - {megatron: a.weight, hf: b.weight, transform: transpos}\n";
  const ToolRun wrong = run_tool({"config", "check", file});
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_THAT(wrong.out, StartsWith(file + ":5:51: tensors[0].transform: found 'transpos', "));
  const ToolRun shown = run_tool({"config", "show", "qwen3"});
  EXPECT_EQ(shown.exit_code, 0);
  std::ofstream(file) << shown.out;
  EXPECT_EQ(run_tool({"config", "check", file}).out, "OK  " + file + "\n");
  EXPECT_EQ(run_tool({"config", "show", file}).out, shown.out);
  EXPECT_EQ(run_tool({"config", "show", "qwen3", "--json"}).json().at("family").as_str(), "qwen3");
}

}  // namespace
}  // namespace dckpt::map_test
