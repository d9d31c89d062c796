// Models with weights of 4 and 8 bits as they are published, and what their libraries make of them:
// tests/data/quantized.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "mapping/base/finding.h"
#include "operations/inspect/inspect.h"
#include "operations/inspect/verify.h"
#include "tests/migration/maps/hf_pair.h"
#include "tests/operations/convert/conversions.h"

namespace dckpt::quantized_models_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::refusal_of;

class QuantizedModels : public testing::Conversions,
                        public ::testing::WithParamInterface<const char*> {
 protected:
  static fs::path data(const std::string& kind) {
    return fs::path(DCKPT_TEST_DATA) / "quantized" / GetParam() / kind;
  }
  static ConvertOptions by_map(std::vector<std::string> set, const std::string& format) {
    return {.source = {.map = {"auto", std::move(set)}},
            .target = {.strategy = format},
            .checks = {.round_trip = true}};
  }
  std::string config_of(const std::string& folder) const {
    std::ifstream file(at(folder) / "config.json");
    return {std::istreambuf_iterator<char>(file), {}};
  }
};
INSTANTIATE_TEST_SUITE_P(Forms, QuantizedModels, ::testing::Values("gpt_oss", "kimi_k2", "nvfp4"),
                         [](const auto& model) { return std::string(model.param); });

TEST_P(QuantizedModels, BecomeWhatTheirLibrariesMakeOfThem) {
  const ConvertReport report =
      convert(data("published"), at("megatron"), by_map({"dequantize=bfloat16"}, "torch_dist"));
  EXPECT_THAT(messages_of(report.findings), Contains(HasSubstr("weights are bfloat16 now")));
  convert(data("values"), at("expected"), by_map({}, "torch_dist"));
  EXPECT_EQ(differences(at("megatron"), at("expected")), 0U);
  ConvertOptions back = by_map({}, "hf");
  back.target.model_files = Location(data("published"));
  convert(at("megatron"), at("back"), back);
  EXPECT_EQ(differences(at("back"), data("values")), 0U);
}

TEST_P(QuantizedModels, StayHuggingFacesWithoutTheirQuantization) {
  fs::copy(data("published"), at("model"));
  std::ofstream(at("model/hf_quant_config.json")) << "{}";
  run("model", "plain", by_map({"keys=hf", "dequantize=bfloat16"}, "hf"));
  EXPECT_EQ(differences(at("plain"), data("values")), 0U);
  EXPECT_THAT(config_of("plain"), AllOf(HasSubstr("model_type"), Not(HasSubstr("quantization"))));
  EXPECT_FALSE(fs::exists(at("plain/hf_quant_config.json")));
}

TEST_P(QuantizedModels, AreCopiedAsTheyAreWithoutAMap) {
  fs::copy(data("published"), at("model"));
  std::ofstream(at("model/hf_quant_config.json")) << "{}";
  run("model", "copy");
  EXPECT_EQ(differences(at("copy"), data("published")), 0U);
  EXPECT_THAT(config_of("copy"), HasSubstr("quantization_config"));
  EXPECT_TRUE(fs::exists(at("copy/hf_quant_config.json")));
  EXPECT_TRUE(verify(*open_checkpoint(at("copy")), {.deep = true}).problems.empty());
}

using PackedIntegers = testing::Conversions;

TEST_F(PackedIntegers, AreOfTheGroupsAndBitsThatConfigJsonStates) {
  const fs::path published = fs::path(DCKPT_TEST_DATA) / "quantized/kimi_k2/published";
  const auto refusal = [&](const char* number, std::int64_t value) {
    fs::remove_all(at("model"));
    fs::copy(published, at("model"));
    Value config = testing::json_of(published / "config.json");
    for (const char* const group : {"group_0", "group_1"})
      config["quantization_config"]["config_groups"][group]["weights"][number] = value;
    std::ofstream(at("model/config.json")) << to_json(config);
    const ConvertOptions options{.source = {.map = {"auto", {"dequantize=bfloat16"}}},
                                 .target = {.strategy = "torch_dist"}};
    return refusal_of([&] { convert(at("model"), at("result"), options); }).second;
  };
  EXPECT_THAT(refusal("group_size", 16),
              HasSubstr("16 weights of a row (group_size of config.json)"));
  EXPECT_EQ(refusal("group_size", -1), "no error") << "a scale for a row, which shapes show";
  EXPECT_THAT(refusal("num_bits", 8), HasSubstr("weights of 8 bits (num_bits of config.json)"));
}

TEST_P(QuantizedModels, AreDequantizedOnRequestOnly) {
  const auto [code, message] =
      refusal_of([&] { convert(data("published"), at("x"), by_map({}, "torch_dist")); });
  EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(message, HasSubstr("--set dequantize=bfloat16"));
}

/// A model with weights of 8 bits and scales by block.
class Float8Models : public testing::Conversions {
 protected:
  /// Converts the published model to Megatron with weights of `dtype`, and back.
  void there_and_back(const std::string& dtype) const {
    convert(published_, at("megatron"),
            {.source = {.map = {"auto", {"dequantize=" + dtype}}}, .target = {.strategy = "dcp"}});
    ConvertOptions back{.source = {.map = {"auto", {"quantize=fp8"}}},
                        .target = {.strategy = "hf"}};
    back.target.model_files = Location(published_);
    const ConvertReport report = convert(at("megatron"), at("back"), back);
    EXPECT_THAT(messages_of(report.findings),
                Contains(HasSubstr("quantized: 7 weights are float8 now")));
  }

  fs::path published_ = fs::path(DCKPT_TEST_DATA) / "quantized/fp8/published";
};

TEST_F(Float8Models, ComeBackBitForBitFromFloat32) {
  there_and_back("float32");
  EXPECT_EQ(differences(at("back"), published_), 0U);
  std::ifstream file(at("back/config.json"));
  const std::string config{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(config, HasSubstr("\"weight_block_size\""));
  EXPECT_THAT(config, HasSubstr("\"model.embed_tokens\""));
  EXPECT_THAT(config, Not(HasSubstr("\"model.layers.0.mlp.up_proj\"")));
}

TEST_F(Float8Models, ComeBackWithEqualValuesFromBfloat16) {
  there_and_back("bfloat16");
  run("back", "values", {.source = {.map = {"auto", {"keys=hf"}}}});
  EXPECT_EQ(differences(at("values"), published_.parent_path() / "values"), 0U);
}

TEST_F(Float8Models, KeepTheirVisionTowers) {
  const fs::path pair = fs::path(DCKPT_TEST_DATA) / "hf_pairs/qwen3_vl";
  ConvertOptions options{.source = {.map = {"auto", {"quantize=fp8"}}},
                         .target = {.strategy = "hf"}};
  options.target.model_files = Location(pair / "hf");
  convert(pair / "mcore", at("model"), options);
  const auto written = open_checkpoint(at("model"));
  std::size_t quantized = 0;
  for (const TensorStorageMetadata& tensor : written->metadata().tensors) {
    if (item_size(tensor.properties.dtype) > 1) continue;
    ++quantized;
    EXPECT_THAT(tensor.key, Not(HasSubstr("visual.")));
  }
  EXPECT_EQ(quantized, 14U);  // seven matrices in each of two layers
}

TEST_F(Float8Models, AreWrittenForHuggingFaceOnly) {
  const auto [code, message] = refusal_of([&] {
    convert(published_, at("x"),
            {.source = {.map = {"auto", {"quantize=fp8"}}}, .target = {.strategy = "dcp"}});
  });
  EXPECT_EQ(code, ErrorCode::kUnsupported);
  EXPECT_THAT(message, HasSubstr("quantize=fp8 is for Hugging Face's keys"));
}

}  // namespace
}  // namespace dckpt::quantized_models_test
