// Maps that change elements: quantized weights, casts and sums.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "mapping/geometry/cast.h"
#include "tests/migration/maps/small_model.h"
#include "tests/support/temp_dir.h"

namespace dckpt::mapped_values_test {
namespace {

using testing::add_file;
using ::testing::Contains;
using testing::contents_of;
using testing::counting;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;
using testing::llama;
using testing::Model;
using ::testing::Not;

/// Returns Llama with weights of 1 and −1 and a scale for each block of 4 × 3, or their values.
std::unique_ptr<FakeReader> quantized_llama(bool is_quantized) {
  auto reader = std::make_unique<FakeReader>();
  for (const auto& [key, shape] : llama().tensors) {
    const auto count = static_cast<std::size_t>(numel(shape));
    if (!key.ends_with("_proj.weight")) {
      reader->tensor(key, DType::kBFloat16, shape, counting<std::uint16_t>(count));
      continue;
    }
    const Shape blocks{(shape[0] + 3) / 4, (shape[1] + 2) / 3};
    std::vector<float> scales;
    for (std::int64_t i = 0; i < numel(blocks); ++i)
      scales.push_back(static_cast<float>(1 + scales.size() + key.size()));
    std::vector<std::uint8_t> codes;
    std::vector<float> values;
    for (std::size_t i = 0; i < count; ++i) {
      const auto row = static_cast<std::int64_t>(i) / shape[1];
      const auto column = static_cast<std::int64_t>(i) % shape[1];
      const float scale = scales[static_cast<std::size_t>(row / 4 * blocks[1] + column / 3)];
      codes.push_back(i % 5 == 0 ? 0xB8 : 0x38);
      values.push_back(i % 5 == 0 ? -scale : scale);
    }
    if (is_quantized) {
      reader->tensor(key, DType::kFloat8E4M3FN, shape, codes);
      reader->tensor(key + "_scale_inv", DType::kFloat32, blocks, scales);
    } else {
      std::vector<std::uint16_t> halves(count);  // exact
      cast_elements(DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()),
                    DType::kBFloat16, reinterpret_cast<std::byte*>(halves.data()), count);
      reader->tensor(key, DType::kBFloat16, shape, halves);
    }
  }
  reader->write();
  std::string config = llama().config;
  config.insert(1, R"("quantization_config": {"quant_method": "fp8",
                                              "weight_block_size": [4, 3]}, )");
  add_file(*reader, "config.json", config);
  return reader;
}

TEST(MappedValues, WeightsWithScalesAreDequantized) {
  MapReport report;
  EXPECT_EQ(contents_of(*mapped_reader(quantized_llama(true), {"auto", {}}, &report)),
            contents_of(*mapped_reader(quantized_llama(false), {"auto", {}})));
  EXPECT_EQ(report.dequantized, 14);
  EXPECT_THAT(messages_of(report.findings),
              Contains(HasSubstr("dequantized: 14 weights are bfloat16 now")));
  EXPECT_EQ(contents_of(*mapped_reader(quantized_llama(true), {"auto", {"keys=hf"}})),
            contents_of(*quantized_llama(false)));
  const RoundTrip trip = round_trip([&] { return quantized_llama(true); }, {"auto", {}});
  EXPECT_EQ(contents_of(*trip.before), contents_of(*quantized_llama(false)));
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
  const auto wide =
      contents_of(*mapped_reader(quantized_llama(true), {"auto", {"dequantize=float32"}}));
  EXPECT_THAT(wide.at("decoder.layers.mlp.linear_fc2.weight"), HasSubstr("float32 (2, 8, 6)"));
}

/// The part with a scale follows from quantization_config, or from shapes.
TEST(MappedValues, TheConfigurationTellsWhatHasAScale) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: one
dequantize: {scales: "_scale_inv", block: [2, 2]}
tensors: [{megatron: "a.weight", hf: "b.weight"}]
ignore: {hf: ["*.input_scale", "*.old"]}
)");
  const auto groups = [](const std::string& strategies) {
    return R"("quant_method": "compressed-tensors", "config_groups": {)" + strategies + "}";
  };
  const std::string channel = R"("group_0": {"weights": {"strategy": "channel"}})";
  struct Case {
    std::string config, suffix;
    Shape scales;
    bool is_read = true;
  };
  for (const auto& [config, suffix, scales, is_read] : std::vector<Case>{
           {groups(channel), "_scale", {4, 1}},
           {groups(channel), "_scale", {2, 2}, false},
           {groups(R"("g": {"weights": {"strategy": "tensor"}})"), "_scale", {1}},
           {groups(R"("g": {"weights": {"strategy": "tensor"}})"), "_scale", {4, 1}, false},
           {groups(R"("g": {"weights": {"strategy": "block"}})"), "_scale", {2, 2}},
           {groups(channel + R"(, "g": {"weights": {"strategy": "tensor"}})"), "_scale", {1}},
           {groups(channel + R"(, "g": {"weights": {"strategy": "tensor"}})"), "_scale", {4, 1}},
           {R"("quant_method": "fbgemm_fp8")", "_scale", {4, 1}},
           {R"("quant_method": "fbgemm_fp8")", "_scale", {}, false},
           {R"("quant_method": "modelopt", "quant_algo": "FP8")", "_scale", {}},
           {R"("quant_method": "fp8", "weight_block_size": [2, 2])", "_scale_inv", {2, 2}},
           {R"("quant_method": "fp8", "weight_block_size": [2, 2])", "_scale_inv", {}, false},
           {R"("quant_method": "fp8", "weight_block_size": null)", "_scale_inv", {}},
           {R"("quant_method": "fp8")", "_scale_inv", {2, 2}},
           {R"("quant_method": "fp8")", "_scale_inv", {}, false},
       }) {
    const auto reader = [&, text = config, ending = suffix, shape = scales] {
      auto made = std::make_unique<FakeReader>();
      made->tensor("b.weight", DType::kFloat8E4M3FN, {4, 4}, std::vector<std::uint8_t>(16, 0x38))
          .tensor("b.weight" + ending, DType::kBFloat16, shape,
                  counting<std::uint16_t>(static_cast<std::size_t>(numel(shape))))
          .tensor<float>("b.input_scale", DType::kFloat32, {}, {1})
          .tensor<std::uint8_t>("b.old", DType::kFloat8E4M3FN, {1}, {0x38})
          .write();
      add_file(*made, "config.json", "{\"quantization_config\": {" + text + "}}");
      return made;
    };
    SCOPED_TRACE(config + suffix + to_string(scales));
    if (is_read) {
      EXPECT_THAT(contents_of(*mapped_reader(reader(), {}, nullptr, {.map = &map})).at("a.weight"),
                  HasSubstr("bfloat16 (4, 4)"));
    } else {
      EXPECT_THAT(error_of([&] { mapped_reader(reader(), {}, nullptr, {.map = &map}); }).message(),
                  HasSubstr("'b.weight" + suffix + "' has the shape"));
    }
  }
}

TEST(MappedValues, FormsThatCannotBeReadAreRefusedByName) {
  Model model = llama();
  model.tensors.emplace_back("model.layers.0.mlp.up_proj.qweight", Shape{1});
  model.tensors.emplace_back("model.layers.0.mlp.up_proj.qzeros", Shape{1});
  const CheckpointError error = error_of([&] { model.mapped({"auto", {}}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("the weights are quantized by AWQ ("));
}

TEST(MappedValues, TheRuleOfAKeyTellsWhatItBecomesOrWhyNot) {
  const auto rule = rule_for(quantized_llama(true), {"auto", {"layout=non-homogeneous"}},
                             "model.layers.0.mlp.up_proj.weight_scale_inv");
  ASSERT_TRUE(rule);
  EXPECT_THAT(rule->to, ElementsAre("decoder.layers.0.mlp.linear_fc1.weight"));
  EXPECT_THAT(rule->from, ElementsAre("model.layers.0.mlp.gate_proj.weight",
                                      "model.layers.0.mlp.gate_proj.weight_scale_inv",
                                      "model.layers.0.mlp.up_proj.weight",
                                      "model.layers.0.mlp.up_proj.weight_scale_inv"));
  const Model model = llama().with("model.layers.0.self_attn.rotary_emb.inv_freq", {1});
  EXPECT_EQ(
      rule_for(model.open(), {"auto", {}}, "model.layers.0.self_attn.rotary_emb.inv_freq")->dropped,
      "the map ignores them");
  EXPECT_FALSE(rule_for(model.open(), {"auto", {}}, "model.layers.7.self_attn.q_proj.weight"));
}

TEST(MappedValues, ScalesNeedAMapThatKnowsThem) {
  EXPECT_THAT(error_of([] {
                mapped_reader(quantized_llama(true), {"auto", {"scale_block_rows=8"}});
              }).message(),
              HasSubstr("expected a scale for each block of 8 × 3"));
  Model gpt2{.tensors = {{"transformer.wpe.weight", {2, 2}}, {"lm_head.weight_scale_inv", {1}}}};
  EXPECT_THAT(gpt2.error({"gpt2", {"num_attention_heads=1", "vocab_size=2"}}),
              HasSubstr("give it 'dequantize'"));
}

/// Norms as Gemma's, which lack their 1 in Hugging Face files, in a Megatron whose norms have it.
TEST(MappedValues, ElementsThatShareAByteMoveInRowsOnly) {
  const TempDir folder;
  const auto mapped = [&](const std::string& steps, const Shape& shape) {
    const std::string file = (folder.path() / "packed.yaml").string();
    std::ofstream(file) << "version: 1\nfamily: packed\n"
                           "tensors:\n  - {megatron: w, hf: [a, b], transform: "
                        << steps << "}\n";
    auto reader = std::make_unique<FakeReader>();
    for (const char* const key : {"a", "b"})
      reader->tensor<std::uint8_t>(key, DType::kFloat4E2M1FNx2, shape, {0x12, 0x34, 0x56, 0x78});
    reader->write();
    return contents_of(*mapped_reader(std::move(reader), {file, {}}));
  };
  EXPECT_THAT(mapped("concat_rows", {2, 2}).at("w"), HasSubstr("float4_e2m1fn_x2 (4, 2)"));
  for (const auto& [steps, shape] : std::vector<std::pair<std::string, Shape>>{
           {"[transpose, concat_rows]", {2, 2}}, {"concat_rows", {4}}}) {
    const CheckpointError error =
        error_of([&, steps = steps, shape = shape] { mapped(steps, shape); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.context().key, "a");
  }
}

/// A router with its bias in float32, beside a weight of 16 bits.
class Router : public ::testing::Test {
 protected:
  KeyMapOptions map(const std::string& how, std::vector<std::string> set) const {
    std::ofstream(folder_.path() / "router.yaml")
        << "version: 1\nfamily: router\ntensors:\n"
           "  - {megatron: \"router.weight\", hf: \"gate.weight\"}\n"
           "  - {megatron: \"mlp.router.expert_bias\", hf: \"gate.bias\""
        << how << "}\n";
    return {(folder_.path() / "router.yaml").string(), std::move(set)};
  }
  static std::unique_ptr<FakeReader> model() {
    auto reader = std::make_unique<FakeReader>();
    reader->tensor<std::uint16_t>("router.weight", DType::kBFloat16, {2}, {0x3F00, 0x3B00});
    reader->tensor<float>("mlp.router.expert_bias", DType::kFloat32, {2}, {0.1F, 0.2F}).write();
    return reader;
  }
  std::map<std::string, std::string> mapped(const KeyMapOptions& options) {
    report_ = {};
    const auto reader = mapped_reader(model(), options, &report_);
    const RoundTrip trip = round_trip([] { return model(); }, options);
    EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
    return contents_of(*reader);
  }

  TempDir folder_;
  MapReport report_;
};

TEST_F(Router, KeepsTheDigitsOfItsBiasWhereWeightsAreCast) {
  const auto narrow = mapped(map("", {"dtype=float16"}));
  EXPECT_THAT(narrow.at("gate.weight"), HasSubstr("float16 (2,)"));
  EXPECT_THAT(narrow.at("gate.bias"), HasSubstr("float32 (2,)"));
  EXPECT_THAT(messages_of(report_.findings),
              Contains("not cast: 'gate.bias', float32, as models need their digits"));
  const auto wide = mapped(map("", {"dtype=float32"}));
  EXPECT_THAT(wide.at("gate.weight"), HasSubstr("float32 (2,)"));
  EXPECT_THAT(messages_of(report_.findings),
              Contains("converted: 1 bfloat16 tensors became float32"));
  mapped(map("", {"dtype=bfloat16"}));
  EXPECT_THAT(messages_of(report_.findings),
              Contains("no tensor was cast: the rest is bfloat16 already"));
}

TEST_F(Router, HasTheTypeThatItsRowSays) {
  EXPECT_THAT(mapped(map(", cast: {hf: bfloat16}", {"dtype=float32"})).at("gate.bias"),
              HasSubstr("bfloat16 (2,)"));
  EXPECT_THAT(messages_of(report_.findings),
              Contains("not cast: 'gate.bias', bfloat16, as the map says their type"));
}

class Norms : public ::testing::Test {
 protected:
  static constexpr std::uint16_t kHalf = 0x3F00, kTiny = 0x3B00;  // bfloat16: 0.5, 2⁻⁹

  /// `how` holds the fields of the row.
  KeyMapOptions map(const std::string& how, std::vector<std::string> set = {}) const {
    std::ofstream(folder_.path() / "norms.yaml")
        << "version: 1\nfamily: norms\nnumbers: {plus_one: {args: plus_one, else: true}}\n"
           "tensors:\n  - {megatron: \"layers.{l}.norm\", hf: \"{l}.norm\", "
        << how << "}\n";
    return {(folder_.path() / "norms.yaml").string(), std::move(set)};
  }
  static std::unique_ptr<FakeReader> model(const std::vector<std::uint16_t>& values) {
    auto reader = std::make_unique<FakeReader>();
    for (const char* const key : {"0.norm", "1.norm"})
      reader->tensor(key, DType::kBFloat16, {2}, values);
    reader->write();
    return reader;
  }
  static std::vector<float> floats(const CheckpointReader& reader) {
    const Tensor all = read_box(reader, 0, whole(reader.metadata().tensors[0].size));
    return {all.data<const float>(), all.data<const float>() + all.numel()};
  }

  TempDir folder_;
};

TEST_F(Norms, AreCastAndHaveTheirOneAddedAndBack) {
  const KeyMapOptions plus = map("add: 1, cast: {megatron: float32, hf: bfloat16}");
  MapReport report;
  const auto there = mapped_reader(model({kHalf, kTiny}), plus, &report);
  EXPECT_THAT(floats(*there), ElementsAre(1.5F, 1.001953125F, 1.5F, 1.001953125F));
  EXPECT_THAT(messages_of(report.findings),
              Contains("converted: 2 bfloat16 tensors became float32, plus 1"));
  EXPECT_EQ(contents_of(*mapped_reader(mapped_reader(model({kHalf, kTiny}), plus), plus)),
            contents_of(*model({kHalf, kTiny})));
  const RoundTrip trip = round_trip([] { return model({kHalf, kTiny}); }, plus);
  EXPECT_EQ(contents_of(*trip.after), contents_of(*model({kHalf, kTiny})));
}

TEST_F(Norms, ThatWouldNotComeBackAreRefusedUnlessTheMapRounds) {
  const auto read = [](const CheckpointReader& reader) { contents_of(reader); };
  const KeyMapOptions plus = map("add: 1");
  read(*mapped_reader(model({kHalf, kHalf}), plus));
  EXPECT_THAT(error_of([&] {
                read(*mapped_reader(model({kHalf, kTiny}), plus));
              }).message(),
              HasSubstr("0.001953125 would come back as 0 from bfloat16"));
  const KeyMapOptions rounded = map("add: {value: 1, rounded: true}");
  MapReport report;
  read(*mapped_reader(model({kHalf, kTiny}), rounded, &report));
  EXPECT_THAT(messages_of(report.findings),
              Contains("converted: 2 bfloat16 tensors, plus 1, rounded; they do "
                       "not come back as they were"));
  EXPECT_THAT(error_of([&] {
                round_trip([] { return model({kHalf, kTiny}); }, rounded);
              }).message(),
              HasSubstr("'rounded: true', so that it does not come back"));
}

TEST_F(Norms, OfACastThatRoundsARoundTripComparesWhatIsLeft) {
  const auto wide = [](float value) {
    auto reader = std::make_unique<FakeReader>();
    reader->tensor<float>("0.norm", DType::kFloat32, {2}, {0.5F, value}).write();
    return reader;
  };
  const KeyMapOptions narrow = map("cast: {megatron: bfloat16}");
  MapReport report;
  mapped_reader(wide(0.1F), narrow, &report);
  EXPECT_THAT(messages_of(report.findings),
              Contains("converted: 1 float32 tensors became bfloat16, rounded; they stay so on the "
                       "way back, and a round trip compares these values"));
  const RoundTrip trip = round_trip([&] { return wide(0.1F); }, narrow);
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
  EXPECT_THAT(floats(*trip.after), ElementsAre(0.5F, 0.10009765625F));
}

/// Ranks load different rows and columns, including half a head.
TEST_F(Norms, PartsOfSumsAreThoseOfTheWhole) {
  constexpr std::int64_t kRows = 16, kColumns = 6;  // rows of each group: two heads, key and value
  std::ofstream(folder_.path() / "sums.yaml") << R"(version: 1
family: sums
numbers: {num_attention_heads: {else: 4}, num_query_groups: {else: 2}}
tensors:
  - megatron: "layers.{l}.qkv"
    hf: ["{l}.q", "{l}.k", "{l}.v"]
    transform: [rope_interleave: [4, 2, 0], qkv_interleave]
    add: 0.5
    cast: {megatron: float32, hf: bfloat16}
)";
  auto source = std::make_unique<FakeReader>();
  std::uint16_t next = 0x3F00;
  for (const char* const layer : {"0.", "1."}) {
    for (const auto& [name, rows] : {std::pair("q", 8), std::pair("k", 4), std::pair("v", 4)}) {
      std::vector<std::uint16_t> values(static_cast<std::size_t>(rows * kColumns));
      for (std::uint16_t& value : values) value = next++;
      source->tensor(std::string(layer) + name, DType::kBFloat16, {rows, kColumns}, values);
    }
  }
  source->write();
  const auto reader =
      mapped_reader(std::move(source), {(folder_.path() / "sums.yaml").string(), {}});
  const Tensor all = read_box(*reader, 0, whole(Shape{2, kRows, kColumns}));
  EXPECT_EQ(all.data<float>()[0], 0.5F + 0.5F);  // the first row of the first head is unchanged
  for (const Box& box : {Box{{0, 3, 0}, {2, 7, kColumns}}, Box{{1, 0, 2}, {1, kRows, 3}},
                         Box{{0, 5, 1}, {1, 1, 4}}}) {
    const Tensor part = read_box(*reader, 0, box);
    std::int64_t at = 0;
    for (std::int64_t layer = 0; layer < box.sizes[0]; ++layer) {
      for (std::int64_t row = 0; row < box.sizes[1]; ++row) {
        for (std::int64_t column = 0; column < box.sizes[2]; ++column) {
          const std::int64_t from = ((layer + box.offsets[0]) * kRows + row + box.offsets[1]);
          EXPECT_EQ(part.data<float>()[at++],
                    all.data<float>()[from * kColumns + column + box.offsets[2]]);
        }
      }
    }
  }
}

TEST_F(Norms, WithoutElementsComeBackToo) {
  const KeyMapOptions narrow = map("cast: {megatron: float16}");
  const RoundTrip trip = round_trip(
      [] {
        auto reader = std::make_unique<FakeReader>();
        reader->tensor<float>("0.norm", DType::kFloat32, {0}, {}).write();
        return reader;
      },
      narrow);
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
}

TEST_F(Norms, GetNothingAddedWhereANumberSaysSo) {
  const KeyMapOptions never = map("add: {value: 1, if: plus_one}", {"plus_one=false"});
  MapReport report;
  EXPECT_THAT(contents_of(*mapped_reader(model({kHalf, kTiny}), never, &report)),
              ElementsAre(::testing::Pair("layers.norm", HasSubstr("bfloat16 (2, 2)"))));
  EXPECT_THAT(messages_of(report.findings), Not(Contains(HasSubstr("converted"))));
}

}  // namespace
}  // namespace dckpt::mapped_values_test
