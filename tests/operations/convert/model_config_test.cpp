// The files that go along with converted weights are true of them: config.json, the tokenizer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "mapping/base/format.h"
#include "migration/maps/findings/config_agreement.h"
#include "migration/maps/findings/dropped_copies.h"
#include "migration/maps/numbers/map_numbers.h"
#include "operations/convert/model/model_config.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/migration/maps/small_model.h"
#include "tests/operations/convert/conversions.h"

namespace dckpt::model_config_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::hf_pair;
using testing::json_of;

using Edit = std::vector<ConfigEntry>;

/// Returns the messages of findings of a kind.
std::vector<std::string> messages_of(const Findings& findings, FindingCode code) {
  std::vector<std::string> messages;
  for (const Finding& finding : findings) {
    if (finding.code == code) messages.push_back(finding.message);
  }
  return messages;
}

class ModelConfigs : public testing::Conversions {
 protected:
  /// Writes a folder with the config.json of a pair, changed.
  fs::path config_of(const std::string& pair, const Edit& edits,
                     const std::string& without = "") const {
    Value config = json_of(hf_pair(pair) / "hf" / "config.json");
    for (const ConfigEntry& edit : edits) set_entry(config, edit);
    if (!without.empty()) config.mutable_dict().erase(without);
    fs::create_directories(at("config"));
    std::ofstream(at("config") / "config.json") << to_json(config, 2);
    return at("config");
  }

  /// Copies the Hugging Face files of a pair, with a changed config.json.
  fs::path model_of(const std::string& pair, const Edit& edits) const {
    fs::copy(hf_pair(pair) / "hf", at("model"), fs::copy_options::recursive);
    fs::copy(config_of(pair, edits) / "config.json", at("model"),
             fs::copy_options::overwrite_existing);
    return at("model");
  }

  void clear() const {
    for (const auto& entry : fs::directory_iterator(at(""))) fs::remove_all(entry.path());
  }
};

TEST_F(ModelConfigs, ANumberThatIsGivenIsWrittenIntoConfigJson) {
  struct Case {
    std::string pair;
    ConfigEntry wrong;
    std::vector<std::string> set;
  };
  const std::vector<Case> cases{
      {"qwen3", {"vocab_size", 90}, {"vocab_size=100"}},
      {"qwen3", {"intermediate_size", 8}, {}},
      {"qwen3", {"num_hidden_layers", 7}, {}},
      {"qwen2", {"tie_word_embeddings", false}, {"tied=true"}},
      {"qwen2", {"tie_word_embeddings", Value()}, {"tied=true"}},
      {"mixtral", {"num_local_experts", 9}, {}},
      {"qwen3_vl", {"text_config.vocab_size", 64}, {}},
      {"glm4", {"rope_parameters.partial_rotary_factor", 0.25}, {"rotary_dim=8"}},
      {"deepseek_v3", {"qk_rope_head_dim", 2}, {}},
  };
  const std::map<std::string, std::string> numbers{{"vocab_size", "vocab_size"},
                                                   {"intermediate_size", "ffn_hidden_size"},
                                                   {"num_hidden_layers", "num_layers"},
                                                   {"num_local_experts", "num_experts"},
                                                   {"text_config.vocab_size", "vocab_size"},
                                                   {"qk_rope_head_dim", "qk_rope_head_dim"}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.pair + ": " + one.wrong.path);
    const Value right = json_of(hf_pair(one.pair) / "hf" / "config.json");
    std::vector<std::string> set = one.set;
    if (set.empty()) {
      const std::size_t dot = one.wrong.path.find('.');
      const Value& section =
          dot == std::string::npos ? right : right.at(one.wrong.path.substr(0, dot));
      const Value& value =
          section.at(one.wrong.path.substr(dot == std::string::npos ? 0 : dot + 1));
      set = {numbers.at(one.wrong.path) + "=" + to_json(value)};
    }
    const ConvertOptions options{
        .source = {.map = {.name = "auto", .set = set}},
        .target = {.strategy = "hf", .model_files = config_of(one.pair, {one.wrong})}};
    const ConvertReport report = convert(hf_pair(one.pair) / "mcore", at("result"), options);
    EXPECT_EQ(to_json(json_of(at("result") / "config.json")), to_json(right));
    EXPECT_THAT(messages_of(report.findings, FindingCode::kConfigDiffers), ::testing::IsEmpty());
    clear();
  }
}

TEST_F(ModelConfigs, NumbersOfTheSourcesScalesAreNotThoseOfTheResult) {
  const ConvertOptions options{
      .source = {.map = {.name = "auto", .set = {"quantize=fp8", "scale_block_rows=64"}}},
      .target = {.strategy = "hf", .model_files = config_of("deepseek_v3", {})}};
  convert(hf_pair("deepseek_v3") / "mcore", at("result"), options);
  const Value config = json_of(at("result") / "config.json");
  EXPECT_EQ(to_json(config.at("quantization_config").at("weight_block_size")), "[128, 128]");
}

TEST_F(ModelConfigs, OfAMapWithTheSameNamesOnBothSidesAreComparedFromTheirSide) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: same
model_types: [same]
numbers:
  num_attention_heads: {args: num_attention_heads, hf: n_head}
  num_layers: {args: num_layers, hf: n_layer}
tensors:
  - {megatron: "h.{l}.query.weight", hf: "h.{l}.query.weight", transform: {rope_interleave: num_attention_heads}}
)");
  testing::FakeReader reader;
  reader.tensor<float>("h.0.query.weight", DType::kFloat32, {8, 2}, std::vector<float>(16, 1));
  const Metadata metadata = reader.write().metadata();
  for (const int layers : {1, 2}) {
    const Value config = Value::dict({{"model_type", "same"}, {"n_head", 2}, {"n_layer", layers}});
    EXPECT_EQ(compare_with_config(config, metadata, map).size(), layers - 1U);
  }
}

TEST_F(ModelConfigs, NoConfigJsonOfARealModelDiffersFromItsTensors) {
  for (const auto& entry : fs::directory_iterator(hf_pair(""))) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().filename().string());
    const ConvertReport report = convert(entry.path() / "hf", at("copy"));
    EXPECT_THAT(messages_of(report.findings, FindingCode::kConfigDiffers), ::testing::IsEmpty());
    clear();
  }
}

TEST_F(ModelConfigs, AConfigJsonThatDescribesAnotherModelIsNamed) {
  struct Case {
    std::string pair;
    Edit edits;
    std::vector<std::string> exclude;
    std::string said;
  };
  const std::vector<Case> cases{
      {"qwen3", {}, {"model.layers.1.*"}, "the tensors have 1 layers, but num_layers is"},
      {"qwen3", {}, {"*.q_norm.weight"}, "missing: 'model.layers.{}.self_attn.q_norm.weight'"},
      {"qwen3", {}, {"model.norm.weight"}, "missing: 'model.norm.weight'"},
      {"qwen3", {{"vocab_size", 90}}, {}, "vocabulary"},
      {"qwen3", {{"num_attention_heads", 1}}, {}, "num_attention_heads is 1"},
      {"qwen3", {{"attention_bias", true}}, {}, "although attention_bias is true"},
      {"qwen3", {{"num_attention_heads", "4"}}, {}, "the text '4', expected an integer"},
      {"qwen3", {{"intermediate_size", 8.5}}, {}, "8.5, expected an integer"},
      {"qwen2", {{"tie_word_embeddings", false}}, {}, "missing: 'lm_head.weight'"},
      {"glm4", {{"attention_bias", false}}, {}, "bias"},
      {"mixtral", {{"num_local_experts", 9}}, {}, "experts, but num_experts is 9"},
      {"deepseek_v3", {{"n_shared_experts", 2}}, {}, "shared_experts"},
      {"deepseek_v3", {{"n_shared_experts", 0}}, {}, "contradicts that has_shared_experts is 0"},
      {"deepseek_v3", {{"qk_rope_head_dim", 2}}, {}, "rows, but"},
      {"deepseek_v3", {{"q_lora_rank", 3}}, {}, "q_lora_rank is 3"},
      {"deepseek_v3", {{"first_k_dense_replace", 0}}, {}, "first_k_dense_replace is 0"},
      {"deepseek_v3", {}, {"*.q_a_proj.weight"}, "q_a_proj"},
      {"qwen3",
       {{"model_type", "llama"}, {"architectures", Value::list({"LlamaForCausalLM"})}},
       {},
       "has no such tensors: 'model.layers.{}.self_attn.q_norm.weight' (2 keys)"},
      {"qwen3_vl", {}, {"*visual.*"}, "'vision_config'"},
      {"qwen3_vl", {}, {"*visual.blocks.0.*"}, "visual.blocks.0"},
      {"qwen3_vl", {{"text_config.num_hidden_layers", 5}}, {}, "num_layers is 5"},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.pair + ": " + one.said);
    const fs::path model = model_of(one.pair, one.edits);
    const bool lacks = !one.exclude.empty();
    ConvertOptions options{.source = {.keys = {.exclude = one.exclude}}};
    if (!lacks) options.target.model_files = model;
    const fs::path source = lacks ? model : hf_pair(one.pair) / "hf";
    const auto [code, refusal] = testing::refusal_of([&] { convert(source, at("copy"), options); });
    EXPECT_EQ(code, ErrorCode::kMismatch);
    EXPECT_THAT(refusal, HasSubstr(one.said));
    options.checks.allow_other_config = true;
    const ConvertReport report = convert(source, at("copy"), options);
    EXPECT_THAT(messages_of(report.findings, FindingCode::kConfigDiffers),
                Contains(HasSubstr(one.said)));
    clear();
  }
}

TEST_F(ModelConfigs, ThatDoNotDescribeTheirOwnModelEitherGoAlong) {
  const fs::path model = model_of("qwen3", {{"vocab_size", 90}});
  ConvertOptions options;
  const auto differences = [&] {
    const ConvertReport report = convert(model, at("copy"), options);
    fs::remove_all(at("copy"));
    return messages_of(report.findings, FindingCode::kConfigDiffers);
  };
  EXPECT_THAT(differences(), ElementsAre(HasSubstr("embedding"), HasSubstr("output_layer")));
  options.target.model_files = model;  // the same folder
  EXPECT_EQ(differences().size(), 2U);
  options.source.keys.exclude = {"model.norm.weight"};
  EXPECT_THAT(differences(), Contains(HasSubstr("missing: 'model.norm.weight'")));
}

TEST_F(ModelConfigs, BiasesThatConfigJsonDeniesAreRefusedOnTheWay) {
  const auto refusal = [&](const std::string& pair, const std::string& from, const Edit& edits) {
    const fs::path config = config_of(pair, edits);
    const ConvertOptions options{
        .source = {.map = {.name = pair == "qwen2" ? "llama" : "auto", .set = {"vocab_size=100"}}},
        .target = {.model_files = config}};
    return testing::refusal_of([&] { convert(hf_pair(pair) / from, at("result"), options); })
        .second;
  };
  for (const char* const from : {"mcore", "hf"}) {
    EXPECT_THAT(
        refusal("glm4", from, {{"attention_bias", false}}),
        HasSubstr("contradicts that attention_bias is false (attention_bias of config.json)"));
    EXPECT_THAT(refusal("qwen2", from, {{"attention_bias", false}}), HasSubstr("attention_bias"));
    EXPECT_THAT(refusal("deepseek_v3", from, {{"n_shared_experts", 0}}),
                HasSubstr("shared_experts * moe_ffn_hidden_size"));
  }
}

TEST_F(ModelConfigs, OfTheNumbersThatNoRowUsesNoneMayContradict) {
  struct Case {
    ConfigEntry wrong;
    std::string said;
  };
  for (const Case& one : std::vector<Case>{
           {{"rope_interleave", Value()}, "rope_interleave is false (config.json)"},
           {{"rope_interleave", false}, "rope_interleave is false (config.json)"},
           {{"qk_rope_head_dim", 4}, "rows, but kv_down_size is"},
           {{"qk_nope_head_dim", 3}, "rows, but query_size is"},
           {{"q_lora_rank", 5}, "but q_lora_rank is 5 (q_lora_rank of config.json)"},
           {{"first_k_dense_replace", 2}, "as moe layers, but first_k_dense_replace is 2"},
           {{"n_shared_experts", 2}, "shared_size is"},
           {{"tie_word_embeddings", "false"},
            "tie_word_embeddings of config.json is the text 'false', expected an integer"}}) {
    SCOPED_TRACE(one.said);
    const fs::path model = model_of("deepseek_v3", {one.wrong});
    EXPECT_THAT(testing::refusal_of([&] {
                  convert(model, at("result"), {.source = {.map = {.name = "auto"}}});
                }).second,
                HasSubstr(one.said));
    clear();
  }
}

TEST_F(ModelConfigs, ACompressedQueryIsWholeOrNotThere) {
  for (const char* const key : {"linear_q_down_proj.weight", "linear_q_up_proj.weight",
                                "linear_q_up_proj.layer_norm_weight"}) {
    SCOPED_TRACE(key);
    convert(
        hf_pair("deepseek_v3") / "mcore", at("part"),
        {.source = {.keys = {.exclude = {std::string("*") + key}}}, .target = {.strategy = "dcp"}});
    const ConvertOptions options{
        .source = {.map = {.name = "deepseek_v3", .set = {"vocab_size=100"}}},
        .target = {.model_files = config_of("deepseek_v3", {{"q_lora_rank", Value()}})}};
    EXPECT_THAT(testing::refusal_of([&] { convert(at("part"), at("result"), options); }).second,
                HasSubstr(key));
    clear();
  }
}

TEST_F(ModelConfigs, BiasesOfWhichConfigJsonSaysNothingAreWrittenIntoIt) {
  const ConvertOptions options{
      .source = {.map = {.name = "auto", .set = {"vocab_size=100"}}},
      .target = {.strategy = "hf", .model_files = config_of("glm4", {}, "attention_bias")}};
  convert(hf_pair("glm4") / "mcore", at("result"), options);
  EXPECT_EQ(to_json(json_of(at("result") / "config.json").at("attention_bias")), "true");
}

TEST_F(ModelConfigs, ATextModelBesideTheConfigJsonOfTextAndImagesIsNamed) {
  const ConvertReport report =
      convert(hf_pair("qwen3") / "mcore", at("result"),
              {.source = {.map = {.name = "qwen3", .set = {"vocab_size=100"}}},
               .target = {.strategy = "hf", .model_files = hf_pair("qwen3") / "hf"}});
  EXPECT_THAT(messages_of(report.findings, FindingCode::kConfigDiffers), ::testing::IsEmpty());
  const Value config = json_of(hf_pair("qwen3_vl") / "hf" / "config.json");
  EXPECT_THAT(
      dckpt::messages_of(compare_with_config(config, open_checkpoint(at("result"))->metadata())),
      Contains(HasSubstr("a language model alone")));
}

TEST(TiedEmbeddings, TheTopOfAConfigJsonOfTextAndImagesDecides) {
  const KeyMap map = KeyMap::find("llama");
  const auto tied = [&](Value config) {
    return MapNumbers(map, {.args = {}, .run_config = {}, .hf = std::move(config)}, {})
        .is_true("tied");
  };
  const auto text = [](bool value) { return Value::dict({{"tie_word_embeddings", value}}); };
  EXPECT_TRUE(tied(Value::dict({{"tie_word_embeddings", true}, {"text_config", text(false)}})));
  EXPECT_FALSE(tied(Value::dict({{"tie_word_embeddings", false}, {"text_config", text(true)}})));
  EXPECT_TRUE(tied(Value::dict({{"text_config", text(true)}})));
  EXPECT_FALSE(tied(Value::dict({{"text_config", text(false)}})));
}

TEST_F(ModelConfigs, AHeadThatIsCalledTiedIsComparedBeforeItIsDropped) {
  const auto findings = [&](const std::string& pair, const std::string& head) {
    const fs::path model = model_of(pair, {{"tie_word_embeddings", true}});
    std::vector<Location> joined;
    if (!head.empty()) {
      convert(model, at("embedding"),
              {.source = {.keys = {.include = {"model.embed_tokens.weight"}}},
               .target = {.rename = {{"model.embed_tokens", "lm_head"}}},
               .checks = {.allow_other_config = true}});
      joined.push_back(at("embedding"));
    }
    const ConvertReport report = convert(model, at("megatron"),
                                         {.source = {.map = {.name = "auto"}, .join = joined},
                                          .target = {.strategy = "torch_dist"}});
    clear();
    return messages_of(report.findings, FindingCode::kCopiesDiffer);
  };
  EXPECT_THAT(findings("qwen3", ""), Contains(HasSubstr("with other values: 'lm_head.weight'")));
  EXPECT_THAT(findings("qwen2", "a copy of the embedding"), ::testing::IsEmpty());
}

TEST(Vocabulary, RowsThatMegatronsRuleDoesNotPadAreNotCalledPaddingInSilence) {
  const auto warnings = [](std::int64_t rows, Value args) {
    testing::Model model{.tensors = {{"embedding.word_embeddings.weight", {rows, 8}},
                                     {"decoder.final_layernorm.weight", {8}},
                                     {"output_layer.weight", {rows, 8}}},
                         .config = R"({"model_type": "llama", "num_attention_heads": 4,
                                       "num_key_value_heads": 2, "hidden_size": 8,
                                       "vocab_size": 100, "tie_word_embeddings": false})",
                         .args = std::move(args)};
    const std::string layers = "decoder.layers.";
    for (const auto& [key, shape] : std::vector<std::pair<std::string, Shape>>{
             {"self_attention.linear_qkv.layer_norm_weight", {2, 8}},
             {"self_attention.linear_qkv.weight", {2, 16, 8}},
             {"self_attention.linear_proj.weight", {2, 8, 8}},
             {"mlp.linear_fc1.layer_norm_weight", {2, 8}},
             {"mlp.linear_fc1.weight", {2, 12, 8}},
             {"mlp.linear_fc2.weight", {2, 8, 6}}})
      model.tensors.emplace_back(layers + key, shape);
    MapReport report;
    model.mapped({"llama", {}}, &report);
    std::vector<std::string> messages;
    for (const Finding& finding : report.findings) {
      if (finding.code == FindingCode::kVocabularyPadded && finding.severity == Severity::kWarning)
        messages.push_back(finding.message);
    }
    return messages;
  };
  const auto args = [](std::int64_t multiple, std::int64_t ranks) {
    return Value::dict(
        {{"make_vocab_size_divisible_by", multiple}, {"tensor_model_parallel_size", ranks}});
  };
  EXPECT_THAT(warnings(256, args(128, 1)),
              Contains(HasSubstr("has 256 rows, of which 156 are dropped as padding, because "
                                 "vocab_size is 100 (vocab_size of config.json); but Megatron pads "
                                 "100 tokens to 128 rows")));
  EXPECT_THAT(warnings(384, args(64, 4)), Contains(HasSubstr("to 256 rows")));
  EXPECT_THAT(warnings(128, args(64, 4)), ::testing::IsEmpty());
  EXPECT_THAT(warnings(256, args(128, 2)), ::testing::IsEmpty());
  EXPECT_THAT(warnings(128, args(128, 1)), ::testing::IsEmpty());
  EXPECT_THAT(warnings(100, args(128, 1)), ::testing::IsEmpty()) << "not padded at all";
  EXPECT_THAT(warnings(256, Value::dict({{"num_layers", 2}})), ::testing::IsEmpty());
}

TEST_F(ModelConfigs, ATokenizerWithMoreTokensThanRowsIsNamed) {
  const fs::path config = config_of("qwen3", {});
  const auto warnings = [&](const std::string& name, const std::string& text) {
    std::ofstream(config / name) << text;
    const ConvertReport report =
        convert(hf_pair("qwen3") / "mcore", at("result"),
                {.source = {.map = {.name = "auto", .set = {"vocab_size=100"}}},
                 .target = {.strategy = "hf", .model_files = config}});
    fs::remove_all(at("result"));
    fs::remove(config / name);
    return messages_of(report.findings, FindingCode::kVocabularyPadded);
  };
  const auto says = [](const std::string& token) {
    return Contains(HasSubstr("a token with the number " + token));
  };
  EXPECT_THAT(warnings("tokenizer.json", R"({"model": {"vocab": {"a": 0, "b": 100}}})"),
              says("100"));
  EXPECT_THAT(warnings("tokenizer.json",
                       R"({"added_tokens": [{"id": 120}], "model": {"vocab": {"a": 0}}})"),
              says("120"));
  EXPECT_THAT(warnings("vocab.json", R"({"a": 99, "b": 101})"), says("101"));
  EXPECT_THAT(warnings("added_tokens.json", R"({"b": 101})"), says("101"));
  EXPECT_THAT(warnings("tokenizer.json", R"({"model": {"vocab": {"a": 0, "b": 99}}})"),
              ::testing::IsEmpty());
  EXPECT_THAT(warnings("tokenizer.json", "of another form"), ::testing::IsEmpty());
}

TEST_F(ModelConfigs, FilesThatStayBehindAreNamedWhateverIsReadAndWritten) {
  struct Case {
    std::string source;
    std::string beside;  ///< relative to the source
    std::vector<std::string> targets;
  };
  convert(hf_pair("qwen3") / "mcore", at("dcp"), {.target = {.strategy = "dcp"}});
  convert(hf_pair("qwen3") / "mcore", at("zarr"), {.target = {.strategy = "zarr"}});
  convert(hf_pair("qwen3") / "mcore", at("root") / "iter_0000001",
          {.target = {.strategy = "torch",
                      .options = OwnOptions::from_yaml("{tensor_model_parallel_size: 1, "
                                                       "pipeline_model_parallel_size: 1}")}});
  fs::copy(hf_pair("qwen3") / "mcore", at("torch_dist"), fs::copy_options::recursive);
  fs::copy(hf_pair("qwen3") / "hf", at("hf"), fs::copy_options::recursive);
  const std::vector<Case> cases{
      {"dcp", "extra_state/rank_0.pt", {"safetensors", "dcp", "torch_dist"}},
      {"dcp", "lr_scheduler.pkl", {"safetensors"}},
      {"torch_dist", "meta.pt", {"safetensors", "torch_dist", "zarr"}},
      {"zarr", "optimizer.pt", {"torch_dist", "safetensors"}},
      {"hf", "optimizer.pt", {"hf", "torch_dist"}},
      {"hf", "pytorch_model.bin", {"hf"}},
      {"root/iter_0000001", "../layer_wise_optimizer_0.pt", {"torch_dist"}},
      {"root/iter_0000001", "layer_wise_optimizer_0.pt", {"torch_dist", "safetensors"}},
  };
  for (const Case& one : cases) {
    const fs::path file = at(one.source) / one.beside;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << "state";
    const std::string name =
        one.beside.starts_with("..") ? one.beside : one.beside.substr(0, one.beside.find('/'));
    for (const std::string& target : one.targets) {
      SCOPED_TRACE(one.source + " to " + target + ": " + one.beside);
      const ConvertReport report = convert(
          at(one.source), at("result"),
          {.source = {.map = {.name = "none"}}, .target = {.strategy = target, .overwrite = true}});
      EXPECT_THAT(messages_of(report.findings, FindingCode::kModelFilesLeftOut),
                  Contains(HasSubstr("'" + name + "'")));
    }
    fs::remove(file);
  }
}

}  // namespace
}  // namespace dckpt::model_config_test
