#include "migration/maps/map_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/migration/maps/small_model.h"

namespace dckpt {
namespace {

using testing::add_file;
using ::testing::Contains;
using testing::error_of;
using ::testing::HasSubstr;
using testing::llama;
using testing::Model;
using ::testing::Not;

TEST(MapNumbers, NumbersThatContradictTheTensorsAreNamed) {
  EXPECT_THAT(llama().error({"llama", {"num_layers=3"}}),
              HasSubstr("the tensors have 2 layers, but num_layers is 3 (as set)"));
  EXPECT_THAT(llama().error({"llama", {"num_query_groups=4"}}),
              HasSubstr("linear_qkv.weight: key has 4 rows for 4 heads of query, key and value; "
                        "num_attention_heads is 4 (num_attention_heads of config.json), "
                        "num_query_groups is 4 (as set), kv_channels is 2 (hidden_size / "
                        "num_attention_heads)"));
  EXPECT_THAT(llama().error({"llama", {"hidden_size=16", "kv_channels=2"}}),
              HasSubstr("word_embeddings.weight: there are 8 columns, but hidden_size is 16"));
  EXPECT_THAT(
      llama().error({"llama", {"ffn_hidden_size=7"}}),
      HasSubstr("linear_fc2.weight: there are 6 columns, but ffn_hidden_size is 7 (as set)"));
  EXPECT_THAT(llama().error({"llama", {"vocab_size=10"}}),
              HasSubstr("the vocabulary has 11 rows here"));
  EXPECT_THAT(llama().with("model.layers.1.mlp.up_proj.weight", {5, 8}).error({"llama", {}}),
              HasSubstr("mlp.linear_fc1.weight: 11 rows cannot be divided into 2 parts"));
  Model nobody = llama();
  nobody.config = "{}";
  EXPECT_THAT(
      nobody.error({"llama", {"vocab_size=11"}}),
      HasSubstr("num_attention_heads is not known (looked for: num_attention_heads of args, "
                "num_attention_heads of config.json); give it with --set "
                "num_attention_heads=NUMBER"));
}

TEST(MapNumbers, ArgsAndConfigJsonMustBeOfOneModel) {
  Model model = llama();
  model.args = Value::dict({{"num_attention_heads", 8}});
  EXPECT_THAT(model.error({"llama", {}}),
              HasSubstr("num_attention_heads is 8 (num_attention_heads of args), but 4 "
                        "(num_attention_heads of config.json)"));
  MapReport report;
  EXPECT_FALSE(model.mapped({"llama", {"num_attention_heads=4"}}, &report).empty());
  EXPECT_THAT(messages_of(report.findings),
              Contains("numbers: num_attention_heads is 4 as set, not 8 "
                       "(num_attention_heads of args)"));
}

TEST(MapNumbers, NumbersAreThoseOfABridgesRunConfigToo) {
  Model model;
  model.tensors = {{"decoder.layers.self_attention.linear_qkv.weight", {1, 16, 8}}};
  const auto message = [&](const std::string& run_config) {
    auto source = model.open();
    add_file(*source, "run_config.yaml", run_config);
    return error_of([&] { mapped_reader(std::move(source), {"llama", {}}); }).message();
  };
  const std::string heads = "  num_attention_heads: 4\n  num_query_groups: 2\n";
  EXPECT_THAT(message("train:\n" + heads), HasSubstr("num_attention_heads is not known"));
  EXPECT_THAT(message("model:\n" + heads), Not(HasSubstr("num_attention_heads")));
  EXPECT_THAT(message("model:\n  kv_channels: 3\n" + heads),
              HasSubstr("kv_channels is 3 (kv_channels of run_config.yaml)"));
  EXPECT_THAT(message("model:\n  kv_channels: 2\n  rotary_percent: 1.5\n" + heads),
              HasSubstr("rotary_dim is 1.5 of kv_channels (rotary_percent of run_config.yaml)"));
}

/// Megatron up to 0.16 writes num_query_groups = 1 if there are no groups.
TEST(MapNumbers, GroupsOfArgsMeanNothingWithoutGroupedAttention) {
  Model model;
  model.config = "{}";
  model.tensors = {{"decoder.layers.self_attention.linear_qkv.weight", {1, 24, 8}}};
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: attention
numbers:
  num_attention_heads: {args: num_attention_heads}
  num_query_groups:
    args: num_query_groups
    args_if: group_query_attention
    else: num_attention_heads
tensors:
  - megatron: "decoder.layers.{l}.self_attention.linear_qkv.weight"
    hf: ["{l}.q", "{l}.k", "{l}.v"]
    transform: qkv_interleave
)");
  Value args = Value::dict({{"num_attention_heads", 4}, {"num_query_groups", 1}});
  for (const auto& [grouped, keys] : {std::pair(false, 8), std::pair(true, 4)}) {
    args["group_query_attention"] = grouped;
    const MapNumbers numbers(map, {.args = args, .run_config = {}, .hf = {}}, {});
    const MappedKeys mapped = apply_key_map(map, numbers, model.open()->metadata());
    ASSERT_EQ(mapped.tensors.size(), 3);
    EXPECT_EQ(mapped.tensors[1].size, (Shape{keys, 8}));
  }
}

TEST(MapNumbers, NumbersMayBeThoseOfTheTextInAModelOfImages) {
  Model model = llama();
  const std::string text = R"({"model_type": "llava", "text_config": )" + model.config;
  model.config = text + "}";
  EXPECT_EQ(model.mapped({"llama", {}}), llama().mapped({"llama", {}}));
  model.config = text + R"(, "vocab_size": 12, "hidden_size": 4})";  // a model of image and text
  EXPECT_EQ(model.mapped({"llama", {}}), llama().mapped({"llama", {}}));
}

TEST(MapNumbers, APartOfAnotherNumberIsRoundedDown) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: parts
numbers:
  rows: {args: rows}
  turning: {args: percent, hf: rope.factor, part_of: rows, else: rows}
tensors: [{megatron: a, hf: b}]
)");
  const auto numbers = [&](const Value& args, const Value& hf = Value::dict()) {
    return MapNumbers(map, {.args = args, .run_config = {}, .hf = hf}, {});
  };
  const MapNumbers half = numbers(Value::dict({{"rows", 5}, {"percent", 0.5}}));
  EXPECT_EQ(half.find("turning"), 2);
  EXPECT_EQ(half.describe("turning"), "turning is 2 (0.5 of rows, by percent of args)");
  EXPECT_EQ(half.as_args().at("percent"), Value(0.4));
  EXPECT_EQ(numbers(Value::dict({{"rows", 5}})).find("turning"), 5);
  EXPECT_EQ(numbers(Value::dict({{"percent", 1}})).find("turning"), std::nullopt);
  const auto message = [&](const Value& args, const Value& hf = Value::dict()) {
    return error_of([&] { numbers(args, hf); }).message();
  };
  EXPECT_EQ(message(Value::dict({{"percent", 0.5}})),
            "turning is 0.5 of rows (percent of args), which is not known");
  EXPECT_THAT(message(Value::dict({{"rows", 5}, {"percent", 1.5}})),
              HasSubstr("expected a part from 0 to 1"));
  EXPECT_THAT(message(Value::dict({{"rows", 8}, {"percent", 0.5}}),
                      Value::dict({{"rope", Value::dict({{"factor", 0.25}})}})),
              HasSubstr("turning is 4 (0.5 of rows, by percent of args), but 2"));
}

TEST(MapNumbers, TiedEmbeddingsHaveNoOutputLayer) {
  Model tied = llama();
  tied.config.insert(1, R"("tie_word_embeddings": true, )");
  MapReport report;
  EXPECT_FALSE(tied.mapped({"llama", {}}, &report).contains("output_layer.weight"));
  EXPECT_THAT(messages_of(report.findings), Contains("dropped: 'lm_head.weight', as tied is true "
                                                     "(tie_word_embeddings of config.json)"));
  // Without a setting, the tensors decide.
  EXPECT_FALSE(
      llama().without("lm_head.weight").mapped({"llama", {}}).contains("output_layer.weight"));
  // The configuration and the tensors contradict each other.
  Model untied = llama().without("lm_head.weight");
  untied.config.insert(1, R"("tie_word_embeddings": false, )");
  EXPECT_THAT(untied.error({"llama", {}}), HasSubstr("missing: 'lm_head.weight'"));
}

TEST(MapNumbers, SettingsAreChecked) {
  EXPECT_THAT(llama().error({"llama", {"layout=flat"}}),
              HasSubstr("the setting layout is 'flat', expected one of 'homogeneous'"));
  EXPECT_THAT(llama().error({"llama", {"vocab"}}),
              HasSubstr("a setting is NAME=VALUE, not 'vocab'"));
  EXPECT_THAT(llama().error({"llama", {"vocab_sise=1"}}), HasSubstr("did you mean 'vocab_size'?"));
  EXPECT_THAT(llama().error({"llama", {"layot=singleton"}}), HasSubstr("did you mean 'layout'?"));
  EXPECT_THAT(llama().error({"llama", {"vocab_size=many"}}),
              HasSubstr("vocab_size is set to 'many'"));
  for (const char* const name : {"layout", "dtype", "prefix", "dequantize", "vocab_size"}) {
    const std::string setting = std::string(name) + (name[0] == 'l'   ? "=singleton"
                                                     : name[0] == 'd' ? "=float32"
                                                                      : "=1");
    EXPECT_THAT(llama().error({"llama", {setting, setting}}),
                HasSubstr("'" + std::string(name) + "' is set twice"));
  }
  Model other = llama();
  other.config = R"({"model_type": "opt"})";
  EXPECT_THAT(other.error({"auto", {}}), HasSubstr("no map is shipped for the model type 'opt'"));
  EXPECT_TRUE(mapped_reader(llama().open(), {"llama", {"extra_state=leave_out"}})
                  ->metadata()
                  .objects.empty());
}

}  // namespace
}  // namespace dckpt
