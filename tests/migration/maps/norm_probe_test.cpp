#include "migration/maps/findings/norm_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/migration/maps/small_model.h"

namespace dckpt::norm_probe_test {
namespace {

using testing::add_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::llama;
using testing::Model;

/// Returns element i of norm n.
using NormValues = std::function<float(std::size_t norm, std::size_t i)>;

/// Llama's five norms with these values, and other weights of one value.
struct Probe {
  NormValues norms;
  std::string type = "llama";
  float others = 0.5F;
  std::size_t missing_bytes = 0;

  std::unique_ptr<FakeReader> open() const {
    auto reader = std::make_unique<FakeReader>();
    std::size_t norm = 0;
    for (const auto& [key, shape] : llama().tensors) {
      std::vector<float> values(static_cast<std::size_t>(numel(shape)), others);
      if (key.find("norm") != key.npos) {
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = norms(norm, i);
        ++norm;
      }
      reader->tensor(key, DType::kFloat32, shape, values);
    }
    reader->write(missing_bytes);
    add_file(*reader, "config.json",
             R"({"model_type": ")" + type +
                 R"(", "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 11,
                    "tie_word_embeddings": false})");
    return reader;
  }

  Findings run(const KeyMapOptions& options = {"auto", {}}, const KeyMap* map = nullptr) const {
    MapReport report;
    const auto mapped = mapped_reader(open(), options, &report, {.map = map});
    return probe_norms(*mapped, report.norms);
  }
};

NormValues all(float value) {
  return [value](std::size_t, std::size_t) { return value; };
}

/// Returns values that differ by up to `spread` from `mean`.
NormValues around(float mean, float spread) {
  return [=](std::size_t, std::size_t i) {
    return mean + spread * (static_cast<float>(i % 8) - 3.5F) / 3.5F;
  };
}

TEST(NormProbe, ZerosAreRefusedWhereNormsAreFactors) {
  const Probe zeros{.norms = all(0)};
  const auto error = error_of([&] { zeros.run(); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("apply_layernorm_1p is false (by the map)"),
                                     HasSubstr("layernorm_zero_centered_gamma")));
  EXPECT_THAT(error.context().key.value_or(""), HasSubstr("norm"));
  EXPECT_THAT(zeros.run({"auto", {"apply_layernorm_1p=false"}}), IsEmpty());
  // One weight of one norm makes it a model.
  EXPECT_THAT(
      Probe{.norms = [](std::size_t norm, std::size_t i) { return norm == 4 && i == 7 ? 0.1F : 0; }}
          .run(),
      IsEmpty());
}

TEST(NormProbe, ZerosAreRightBeforeTrainingWithoutThe1AndInFilesOfZeros) {
  EXPECT_THAT((Probe{.norms = all(0), .type = "gemma"}).run(), IsEmpty());
  EXPECT_THAT((Probe{.norms = all(0), .others = 0}).run(), IsEmpty());
}

TEST(NormProbe, MeansBelowZeroAreAWarningWhereNormsAreFactors) {
  const Findings findings = Probe{.norms = around(-0.6F, 0.2F)}.run();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].severity, Severity::kWarning);
  EXPECT_THAT(findings[0].message,
              AllOf(HasSubstr("5 of 5 have a mean clearly below 0"), HasSubstr("-0.600 in"),
                    HasSubstr("apply_layernorm_1p is false")));
  EXPECT_THAT((Probe{.norms = around(-0.6F, 0.2F), .type = "gemma"}).run(), IsEmpty());
}

TEST(NormProbe, SmallWeightsOfBothSignsAreAWarningWhereNormsAreFactors) {
  const Findings findings = Probe{.norms = around(0.01F, 0.1F)}.run();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].message,
              HasSubstr("5 of 5 have a mean clearly below 0 or small weights"));
  EXPECT_THAT((Probe{.norms = around(0.01F, 0.1F), .type = "gemma"}).run(), IsEmpty());
}

TEST(NormProbe, RealModelsAndRandomWeightsAreNoWarning) {
  // Means of Llama's norms: small in the first layers, large at the end.
  EXPECT_THAT((Probe{.norms = around(0.03F, 0.05F)}).run(), IsEmpty());
  EXPECT_THAT((Probe{.norms = around(1.9F, 0.4F)}).run(), IsEmpty());
  EXPECT_THAT((Probe{.norms = around(-0.1F, 1)}).run(), IsEmpty());
  EXPECT_THAT(
      (Probe{.norms = [](std::size_t norm,
                         std::size_t i) { return around(norm < 2 ? -0.6F : 0.6F, 0.2F)(norm, i); }})
          .run(),
      IsEmpty());
  EXPECT_THAT((Probe{.norms = around(0.8F, 3), .type = "gemma"}).run(), IsEmpty());
}

TEST(NormProbe, OnesAreAWarningWhereNormsLackThe1) {
  const Findings findings = Probe{.norms = all(1), .type = "gemma"}.run();
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].message, HasSubstr("all weights of all norms are 1"));
  EXPECT_THAT((Probe{.norms = all(1)}).run(), IsEmpty());
}

TEST(NormProbe, MapsThatAddThe1MakeTheOtherKind) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
extends: llama
family: llama_1p
tensors:
  - {megatron: "decoder.layers.{l}.self_attention.linear_qkv.layer_norm_weight", hf: "model.layers.{l}.input_layernorm.weight", add: -1}
  - {megatron: "decoder.layers.{l}.mlp.linear_fc1.layer_norm_weight", hf: "model.layers.{l}.post_attention_layernorm.weight", add: -1}
  - {megatron: "decoder.final_layernorm.weight", extra_state: true, hf: "model.norm.weight", add: -1}
)");
  EXPECT_THAT((Probe{.norms = all(1)}).run({}, &map), IsEmpty());
  EXPECT_THAT((Probe{.norms = all(2)}).run({}, &map), ElementsAre(::testing::_));  // 1 in Megatron
}

TEST(NormProbe, WhatCannotBeReadIsLeftToTheCopy) {
  EXPECT_THAT((Probe{.norms = all(0), .missing_bytes = 400}).run(), IsEmpty());
}

TEST(NormProbe, AMapOfTheOtherKindThanConfigJsonNamesIsRefused) {
  for (const auto& [type, map] : std::vector<std::pair<const char*, const char*>>{
           {"gemma", "llama"}, {"gemma", "mistral"}, {"qwen2", "gemma"}}) {
    const Probe probe{.norms = all(0.5F), .type = type};
    const auto error = error_of([&, name = map] { probe.run({name, {}}); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << type << " " << map;
    EXPECT_THAT(error.message(), HasSubstr("use --map " + std::string(type)));
    EXPECT_NO_THROW(probe.run({map, {"apply_layernorm_1p=false"}}));
  }
  EXPECT_NO_THROW((Probe{.norms = all(0.5F), .type = "mistral"}.run({"llama", {}})));
  EXPECT_NO_THROW((Probe{.norms = all(0.5F), .type = "unknown"}.run({"gemma", {}})));
  // A map of one's own for the type decides what Megatron's weights mean, but not which it gets.
  const KeyMap own =
      KeyMap::from_text("version: 1\nextends: llama\nfamily: own\nmodel_types: [gemma]\n");
  const Probe gemma{.norms = all(0.5F), .type = "gemma"};
  EXPECT_NO_THROW(gemma.run({}, &own));
  const KeyMap same_names = KeyMap::from_text(
      "version: 1\nextends: llama\nfamily: same\nnumbers: {apply_layernorm_1p: {else: false}}\n");
  auto megatron = mapped_reader(gemma.open(), {}, nullptr, {.map = &same_names});
  EXPECT_THAT(
      error_of([&] { mapped_reader(std::move(megatron), {}, nullptr, {.map = &own}); }).message(),
      HasSubstr("use --map gemma"));
  // A map that says that both sides mean the same.
  EXPECT_NO_THROW((Probe{.norms = all(0), .type = "gemma"}.run({}, &same_names)));
}

}  // namespace
}  // namespace dckpt::norm_probe_test
