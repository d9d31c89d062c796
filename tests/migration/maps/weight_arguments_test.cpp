#include "migration/maps/arrangement/known_meaning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/migration/maps/small_model.h"

namespace dckpt::weight_arguments_test {
namespace {

using testing::add_file;
using testing::error_of;
using ::testing::HasSubstr;
using testing::hf_pair;
using testing::llama;
using testing::Model;

/// Returns one layer of four heads and two groups under Megatron's names.
Model megatron(const Value& args) {
  Model model{.tensors = {{"embedding.word_embeddings.weight", {11, 8}},
                          {"decoder.layers.self_attention.linear_qkv.layer_norm_weight", {1, 8}},
                          {"decoder.layers.self_attention.linear_qkv.weight", {1, 16, 8}},
                          {"decoder.layers.self_attention.linear_proj.weight", {1, 8, 8}},
                          {"decoder.layers.mlp.linear_fc1.layer_norm_weight", {1, 8}},
                          {"decoder.layers.mlp.linear_fc1.weight", {1, 12, 8}},
                          {"decoder.layers.mlp.linear_fc2.weight", {1, 8, 6}},
                          {"decoder.final_layernorm.weight", {8}},
                          {"output_layer.weight", {11, 8}}},
              .config = R"({"num_attention_heads": 4, "num_key_value_heads": 2})",
              .args = args};
  return model;
}

CheckpointError refused(const Model& model, const KeyMapOptions& options) {
  return error_of([&] { model.mapped(options); });
}

TEST(WeightArguments, ArgumentsThatNoMapHandlesAreRefusedByName) {
  EXPECT_FALSE(megatron(Value::dict({{"swiglu", true}, {"softmax_type", "vanilla"}}))
                   .mapped({"llama", {}})
                   .empty());
  for (const auto& [name, value] : std::vector<std::pair<const char*, Value>>{
           {"swiglu", false},
           {"apply_layernorm_1p", true},
           {"layernorm_zero_centered_gamma", true},
           {"glu_linear_offset", 1.0},
           {"attention_output_gate", true},
           {"multi_latent_attention", true},
           {"qk_l2_norm", true},
           {"softmax_type", "off-by-one"},
           {"apply_residual_connection_post_layernorm", true},
           {"use_mup", true}}) {
    const auto error = refused(megatron(Value::dict({{name, value}})), {"llama", {}});
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << name;
    EXPECT_THAT(error.message(), HasSubstr(name));
  }
  for (const char* const name :
       {"embedding_multiplier", "scale_emb", "logits_scaling", "logit_scale",
        "attention_multiplier", "scale_depth", "lm_head_multiplier", "key_multiplier"}) {
    Model scaled = llama();
    scaled.config.insert(1, "\"" + std::string(name) + "\": 12,");
    EXPECT_THAT(refused(scaled, {"llama", {}}).message(), HasSubstr(name));
  }
  Model as_usual = llama(), scaled = llama();
  as_usual.config.insert(1, R"("mlp_multipliers": [1.0, 1], )");
  EXPECT_FALSE(as_usual.mapped({"llama", {}}).empty());
  scaled.config.insert(1, R"("mlp_multipliers": [1.0, 0.5], )");
  EXPECT_THAT(refused(scaled, {"llama", {}}).message(), HasSubstr("mlp_multipliers is 1, 0.5"));
}

TEST(WeightArguments, FamiliesWhoseWeightsMeanTheOppositeRefuseTheUsualValue) {
  for (const auto& [map, name, value] : std::vector<std::tuple<const char*, const char*, bool>>{
           {"gemma", "apply_layernorm_1p", false},
           {"gemma2", "layernorm_zero_centered_gamma", false},
           {"gemma3", "apply_layernorm_1p", false},
           {"nemotron", "apply_layernorm_1p", false},
           {"nemotron", "swiglu", true},
           {"starcoder2", "swiglu", true},
           {"gpt_neox", "swiglu", true},
           {"gpt_neox", "rotary_interleaved", true},
           {"llama4", "moe_apply_probs_on_input", false},
           {"starcoder2", "apply_layernorm_1p", true}}) {
    const auto error = refused(megatron(Value::dict({{name, value}})), {map, {}});
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << map << " " << name;
    EXPECT_THAT(error.message(), HasSubstr(name));
  }
  for (const auto& [name, value] : std::vector<std::pair<const char*, bool>>{
           {"apply_layernorm_1p", false}, {"attention_output_gate", false}}) {
    const Model attention{
        .tensors = {{"decoder.layers.0.self_attention.linear_qkv.weight", {24, 8}},
                    {"decoder.final_layernorm.weight", {8}}},
        .args = Value::dict({{name, value}})};
    const auto error = refused(attention, {"qwen3_next", {}});
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << name;
    EXPECT_THAT(error.message(), HasSubstr(name));
  }
  EXPECT_FALSE(megatron(Value::dict({{"apply_layernorm_1p", true}}))
                   .mapped({"gemma", {"tied=false"}})
                   .empty());
}

TEST(WeightArguments, AttentionThatTheOtherSideDoesNotHaveIsRefused) {
  // A matrix of GPT-NeoX holds a key and a value for each query.
  const Value groups = Value::dict({{"num_attention_heads", 4}, {"num_query_groups", 2}});
  EXPECT_THAT(refused(megatron(groups), {"gpt_neox", {}}).message(),
              HasSubstr("num_query_groups is 2 (num_query_groups of args)"));
  Model llama4 = megatron(Value::dict({{"qk_l2_norm", false}}));
  llama4.config = R"({"use_qk_norm": true})";
  EXPECT_THAT(
      refused(llama4, {"llama4", {}}).message(),
      HasSubstr("qk_l2_norm is 0 (qk_l2_norm of args), but 1 (use_qk_norm of config.json)"));
}

TEST(WeightArguments, AnArgumentHasSeveralNamesAndSpellings) {
  const auto error = [](const std::string& line) {
    auto source = megatron({}).open();
    add_file(*source, "run_config.yaml", "model:\n  " + line + "\n");
    return error_of([&] { mapped_reader(std::move(source), {"llama", {}}); }).message();
  };
  EXPECT_THAT(error("layernorm_zero_centered_gamma: True"),
              HasSubstr("(layernorm_zero_centered_gamma of run_config.yaml)"));
  EXPECT_THAT(error("gated_linear_unit: false"), HasSubstr("gated_linear_unit is false"));
  EXPECT_THAT(error("softmax_type: 'off-by-one'"), HasSubstr("softmax_type is off-by-one"));
  EXPECT_THAT(error("other: &a true\n  qk_l2_norm: *a"),
              HasSubstr("qk_l2_norm is what an anchor, alias"));
  EXPECT_THAT(error("qk_l2_norm: ["), HasSubstr("run_config.yaml"));
  // One true argument is enough: --quick-geglu leaves swiglu unchanged.
  EXPECT_FALSE(megatron(Value::dict({{"swiglu", false}, {"quick_geglu", true}}))
                   .mapped({"llama", {}})
                   .empty());
}

TEST(WeightArguments, OnlyConversionsThatDependOnItAreRefused) {
  const Model model = megatron(Value::dict({{"swiglu", false}, {"qk_l2_norm", true}}));
  EXPECT_FALSE(model.mapped({"llama", {"keys=megatron", "layout=non-homogeneous"}}).empty());
  EXPECT_THAT(model.error({"llama", {"keys=megatron", "layout=singleton"}}),
              HasSubstr("swiglu is false (args)"));
  // Blocks of experts' rows do not affect a dense model.
  EXPECT_FALSE(
      megatron(Value::dict({{"moe_mlp_glu_interleave_size", 8}})).mapped({"llama", {}}).empty());
}

TEST(WeightArguments, AMapWithANumberOfThatNameDecides) {
  constexpr const char* kMap =
      "version: 1\nextends: llama\nfamily: tern\nnumbers:\n  qk_l2_norm: {else: false}\n";
  const KeyMap map = KeyMap::from_text(kMap);
  EXPECT_NO_THROW(mapped_reader(megatron(Value::dict({{"qk_l2_norm", true}})).open(), {}, nullptr,
                                {.map = &map}));
}

TEST(WeightArguments, TensorsWithAnAxisMoreThanMegatronsAreRefused) {
  const auto error = refused(llama().with("model.norm.weight", {1, 8}), {"llama", {}});
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("'decoder.final_layernorm.weight' has one axis in "
                                         "Megatron, but 'model.norm.weight' has another one"));
  // On the way to Hugging Face, only the name tells.
  const KeyMap map = KeyMap::from_text(R"(version: 1
extends: ernie4_5_moe
family: tern
tensors:
  - {megatron: "decoder.layers.{l}.mlp.router.expert_bias", layers: moe, hf: "model.layers.{l}.mlp.moe_statics.e_score_correction_bias"}
)");
  EXPECT_THAT(error_of([&] {
                mapped_reader(testing::megatron_of("ernie4_5_moe"), {}, nullptr, {.map = &map});
              }).message(),
              HasSubstr("the step squeeze removes a first axis"));
}

TEST(WeightArguments, AMatrixHasTwoAxes) {
  const MapRow row{.megatron = "decoder.layers.{l}.mlp.experts.experts.linear_fc1.weight",
                   .hf = {.keys = {"model.layers.{l}.experts.w1"}}};
  require_axes(row, {12, 8});
  const auto error = error_of([&] { require_axes(row, {8}); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.message(), HasSubstr("a key without {e} counts experts"));
}

/// Returns a map that replaces rows of llama.
KeyMap llama_with(const std::string& rows) {
  return KeyMap::from_text("version: 1\nextends: llama\nfamily: mine\ntensors:\n" + rows);
}

std::unique_ptr<CheckpointReader> mapped(const Model& model, const KeyMap& map,
                                         std::vector<std::string> set = {},
                                         MapReport* report = nullptr) {
  return mapped_reader(model.open(), {"mine", std::move(set)}, report, {.map = &map});
}

const std::string kFusedQkv =
    "  - {megatron: \"decoder.layers.{l}.self_attention.linear_qkv.weight\", hf: "
    "\"model.layers.{l}.self_attn.qkv.weight\"";

Model with_fused_qkv(std::int64_t rows) {
  Model model = llama();
  for (const std::string& layer : {std::string("0"), std::string("1")}) {
    const std::string attention = "model.layers." + layer + ".self_attn.";
    for (const char* const part : {"q", "k", "v"})
      model = model.without(attention + part + "_proj.weight");
    model = model.with(attention + "qkv.weight", {rows, 8});
  }
  return model;
}

TEST(OrderOfHeads, IsReportedIfNoStepStatesIt) {
  MapReport report;
  mapped(with_fused_qkv(16), llama_with(kFusedQkv + "}\n"), {}, &report);
  const auto remark =
      std::ranges::find(report.findings, FindingCode::kOrderAssumed, &Finding::code);
  ASSERT_NE(remark, report.findings.end());
  EXPECT_EQ(remark->severity, Severity::kWarning);
  EXPECT_THAT(remark->message, HasSubstr("all heads of the query come first"));
  report = {};
  mapped(with_fused_qkv(16), llama_with(kFusedQkv + ", transform: qkv_grouped}\n"), {}, &report);
  EXPECT_EQ(std::ranges::find(report.findings, FindingCode::kOrderAssumed, &Finding::code),
            report.findings.end());
}

TEST(OrderOfHeads, ARowWithoutAStepHasTheRowsOfTheHeads) {
  const CheckpointError error =
      error_of([] { mapped(with_fused_qkv(24), llama_with(kFusedQkv + "}\n")); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.message(), HasSubstr("linear_qkv has 24 rows for 8 heads"));
}

TEST(OrderOfHeads, ConcatRowsIsRefused) {
  const std::string row =
      "  - {megatron: \"decoder.layers.{l}.self_attention.linear_qkv.weight\", hf: [\"{l}.q\", "
      "\"{l}.k\", \"{l}.v\"], transform: ";
  EXPECT_THAT(error_of([&] { llama_with(row + "concat_rows}\n"); }).message(),
              HasSubstr("use qkv_interleave"));
  EXPECT_NO_THROW(llama_with(row + "[concat_rows, split_rows: 3, qkv_interleave]}\n"));
}

TEST(UnknownKeys, AreReportedOnTheWayToMegatron) {
  const KeyMap map = llama_with(
      "  - {megatron: \"decoder.final_layernrm.weight\", hf: \"model.norm_f.weight\"}\n");
  const Model model = llama().with("model.norm_f.weight", {8});
  MapReport report;
  const auto megatron = mapped(model, map, {}, &report);
  const auto remark = std::ranges::find(report.findings, FindingCode::kKeysUnknown, &Finding::code);
  ASSERT_NE(remark, report.findings.end());
  EXPECT_THAT(remark->message, HasSubstr("did you mean 'decoder.final_layernorm.weight'?"));
  report = {};
  mapped_reader(mapped(model, map), {"mine", {}}, &report, {.map = &map});
  EXPECT_EQ(std::ranges::find(report.findings, FindingCode::kKeysUnknown, &Finding::code),
            report.findings.end());
}

TEST(Vocabulary, RowsWithoutPaddingAreRefusedWhereMegatronPads) {
  const KeyMap map = llama_with("  - {megatron: \"output_layer.bias\", hf: \"lm_head.bias\"}\n");
  const Model model = llama().with("lm_head.bias", {11});
  EXPECT_THAT(error_of([&] { mapped(model, map); }).message(),
              HasSubstr("output_layer.bias: a vocabulary of 11 rows has 128 in Megatron"));
  EXPECT_NO_THROW(mapped(model, map, {"padded_vocab_size=11"}));
}

/// Megatron's singleton layout has two tensors of a gated matrix.
TEST(Singleton, RowsOfGateAndUpAreGated) {
  const std::string key = "  - {megatron: \"decoder.layers.{l}.mlp.linear_fc1.weight\", hf: ";
  const std::string two =
      "[\"model.layers.{l}.mlp.gate_proj.weight\", \"model.layers.{l}.mlp.up_proj.weight\"], "
      "transform: concat_rows";
  const KeyMap map = llama_with(key + two + "}\n");
  EXPECT_NO_THROW(mapped(llama(), map));
  EXPECT_THAT(error_of([&] { mapped(llama(), map, {"layout=singleton"}); }).message(),
              HasSubstr("gate and up (12 rows), whose halves Megatron's singleton layout stores "
                        "separately; give it 'gated: true'"));
  EXPECT_NO_THROW(
      mapped(llama(), llama_with(key + two + ", gated: true}\n"), {"layout=singleton"}));
}

}  // namespace
}  // namespace dckpt::weight_arguments_test
