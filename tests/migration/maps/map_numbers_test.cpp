#include "migration/maps/numbers/map_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "tests/migration/maps/small_model.h"

namespace dckpt::map_numbers_test {
namespace {

using testing::add_file;
using ::testing::AllOf;
using ::testing::Contains;
using testing::contents_of;
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

TEST(MapNumbers, TheShareOfRotaryRowsMayBelongToAKindOfAttention) {
  const Value rope = Value::dict({{"partial_rotary_factor", 0.5}});
  const Value hf =
      Value::dict({{"head_dim", 64}, {"rope_parameters", Value::dict({{"full_attention", rope}})}});
  const KeyMap map = KeyMap::find("llama");
  EXPECT_EQ(MapNumbers(map, {.args = {}, .run_config = {}, .hf = hf}, {}).find("rotary_dim"), 32);
}

/// A model whose second layer has one query group instead of two.
class NumbersByLayer : public ::testing::Test {
 protected:
  static Model model(const std::string& config) {
    Model model = llama();
    for (const char* const name : {"k_proj", "v_proj"})
      model = model.with(std::string("model.layers.1.self_attn.") + name + ".weight", {2, 8});
    model.config.insert(1, config);
    return model;
  }
  std::unique_ptr<CheckpointReader> to_megatron(const std::string& config) const {
    return mapped_reader(model(config).open(), {{}, {"layout=non-homogeneous"}}, nullptr,
                         {.map = &map_});
  }
  std::string error(const std::string& config) const {
    return error_of([&] { to_megatron(config); }).message();
  }
  static std::string shape_of(const CheckpointReader& reader, const std::string& key) {
    return contents_of(reader).at(key).substr(0, 13);
  }

  KeyMap map_ = KeyMap::from_text(R"(version: 1
extends: llama
family: tern
numbers:
  heads_in_group: {hf: "blocks.{l}.heads_in_group"}
  groups_of_all: {hf: num_key_value_heads}
  num_query_groups: {hf: "types.{l}", words: {narrow: 1, wide: groups_of_all, "true": groups_of_all, "false": 1}, else: num_attention_heads / heads_in_group}
)");
};

TEST_F(NumbersByLayer, EachLayerIsCutByItsOwn) {
  for (const char* const config :
       {R"("blocks": [{"heads_in_group": 2}, {"heads_in_group": 4}], )",
        R"("types": ["wide", "narrow"], )", R"("types": [true, false], )"}) {
    const auto megatron = to_megatron(config);
    EXPECT_EQ(shape_of(*megatron, "decoder.layers.0.self_attention.linear_qkv.weight"),
              "int32 (16, 8)");
    EXPECT_EQ(shape_of(*megatron, "decoder.layers.1.self_attention.linear_qkv.weight"),
              "int32 (12, 8)");
    // The way back takes the numbers from config.json, too.
    const auto back = mapped_reader(to_megatron(config), {}, nullptr, {.map = &map_});
    EXPECT_EQ(contents_of(*back), contents_of(*model(config).open()));
  }
}

/// Four heads of two rows in two groups, then two heads of four rows in one: in the second layer,
/// query, key and value follow each other.
TEST_F(NumbersByLayer, LayersOfTheSameShapeAreCutDifferently) {
  map_ = KeyMap::from_text(R"(version: 1
extends: llama
family: tern
numbers:
  num_attention_heads: {hf: "blocks.{l}.heads"}
  num_query_groups: {else: num_attention_heads / 2}
)");
  Model model = llama();
  model.config.insert(1, R"("blocks": [{"heads": 4}, {"heads": 2}], )");
  const auto megatron = mapped_reader(model.open(), {}, nullptr, {.map = &map_});
  const auto& tensors = megatron->metadata().tensors;
  const auto qkv = std::ranges::find(tensors, "decoder.layers.self_attention.linear_qkv.weight",
                                     &TensorStorageMetadata::key);
  const auto steps = [&](std::int64_t layer) {
    const Tensor content = read_box(*megatron, static_cast<std::size_t>(qkv - tensors.begin()),
                                    {.offsets = {layer, 0, 0}, .sizes = {1, 16, 8}});
    std::vector<std::int32_t> values(16 * 8);
    std::memcpy(values.data(), content.bytes().data(), content.bytes().size());
    std::adjacent_difference(values.begin(), values.end(), values.begin());
    return std::set<std::int32_t>(values.begin() + 1, values.end());
  };
  EXPECT_NE(steps(0), std::set<std::int32_t>{1});
  EXPECT_EQ(steps(1), std::set<std::int32_t>{1});
}

TEST_F(NumbersByLayer, WhatDoesNotFitIsNamed) {
  EXPECT_THAT(error(R"("blocks": [{"heads_in_group": 2}, {"heads_in_group": 2}], )"),
              HasSubstr("num_query_groups is 2 (num_attention_heads / heads_in_group)"));
  EXPECT_THAT(error(R"("blocks": [{"heads_in_group": 2}, {"heads_in_group": 3}], )"),
              HasSubstr("heads_in_group is 3 (blocks.1.heads_in_group of config.json)"));
  EXPECT_THAT(error(R"("blocks": [{"heads_in_group": 2}], )"),
              HasSubstr("num_query_groups is not known (looked for: types.{l} of config.json"));
  EXPECT_THAT(error(R"("types": ["wide", "flat"], )"),
              HasSubstr("num_query_groups is 'flat' (types.1 of config.json), a word for which the "
                        "map has no number"));
}

TEST_F(NumbersByLayer, LayersMayBeKeysWithLeadingZeros) {
  EXPECT_THAT(error(R"("blocks": {"00": {"heads_in_group": 2}, "01": {"heads_in_group": 3}}, )"),
              HasSubstr("heads_in_group is 3 (blocks.1.heads_in_group of config.json)"));
}

TEST_F(NumbersByLayer, MegatronGetsNoConfigurationThatItRefuses) {
  for (const bool has_blocks : {false, true}) {
    const std::string blocks = has_blocks ? R"("block_configs": [{}, {}], )" : "";
    const auto mapped = to_megatron(blocks + R"("types": ["wide", "narrow"], )");
    EXPECT_NE(
        model_config(*mapped).args.find("heterogeneous_layers_config_encoded_json") == nullptr,
        has_blocks);
  }
}

TEST_F(NumbersByLayer, TheConfigurationInArgsMustBeSoundAndOfThisModel) {
  Model model = NumbersByLayer::model(R"("types": ["wide", "narrow"], )");
  const auto error = [&](const char* in_args) {
    model.args = Value::dict({{"heterogeneous_layers_config_encoded_json", in_args}});
    return error_of([&] { mapped_reader(model.open(), {}, nullptr, {.map = &map_}); });
  };
  EXPECT_EQ(error("{").code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error(R"({"types": ["wide", "wide"]})").message(),
              HasSubstr("num_query_groups is 2 (num_key_value_heads of config.json), but 1"));
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
  EXPECT_THAT(other.error({"auto", {}}),
              AllOf(HasSubstr("the shipped maps that know most kinds of its keys: "),
                    HasSubstr("'llama'"), HasSubstr("by Hugging Face's (12 of 12)")));
  other.tensors = {{"decoder.layers.mlp.linear_fc1.weight", {2, 2, 2}}, {"x", {1}}};
  EXPECT_THAT(other.error({"auto", {}}), HasSubstr("by Megatron's (1 of 2)"));
  other.tensors = {{"x", {1}}};
  EXPECT_THAT(other.error({"auto", {}}), ::testing::EndsWith("(see docs/maps.md)"));
  EXPECT_TRUE(mapped_reader(llama().open(), {"llama", {"extra_state=leave_out"}})
                  ->metadata()
                  .objects.empty());
}

}  // namespace
}  // namespace dckpt::map_numbers_test
