#include "migration/maps/assignment/layer_kinds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/migration/maps/small_model.h"
#include "tests/support/temp_dir.h"

namespace dckpt::layer_kinds_test {
namespace {

using ::testing::Contains;
using testing::contents_of;
using testing::error_of;
using ::testing::HasSubstr;
using testing::hugging_face_of;
using testing::Model;
using ::testing::Not;

/// A model whose layers are Mamba or attention, with or without an MLP.
class HybridModel : public ::testing::Test {
 protected:
  HybridModel() {
    std::ofstream(folder_.path() / "small.yaml") << R"(version: 1
family: small
numbers: {}
kinds:
  - {layers: {mamba: [M, linear], attention: "*"}, args: pattern, hf: [pattern, layer_types]}
  - layers: [mlp, no_mlp]
tensors:
  - {megatron: "{l}.mixer.norm", layers: mamba, hf: "{l}.norm"}
  - {megatron: ["{l}.mixer.z", "{l}.mixer.x"], layers: mamba, hf: "{l}.in", transform: {split_rows: [2, 1]}}
  - {megatron: "{l}.attention.norm", layers: attention, hf: "{l}.norm"}
  - {megatron: "{l}.attention.weight", layers: attention, hf: "{l}.qkv"}
  - {megatron: "{l}.mlp", layers: mlp, hf: "{l}.up"}
)";
  }

  KeyMapOptions map(std::vector<std::string> set = {}) const {
    return {(folder_.path() / "small.yaml").string(), std::move(set)};
  }

  Model model_{
      .tensors = {
          {"0.norm", {4}}, {"0.in", {6, 4}}, {"0.up", {8, 4}}, {"1.norm", {4}}, {"1.qkv", {4, 4}}}};

 private:
  TempDir folder_;
};

TEST_F(HybridModel, LayersHaveTheRowsOfTheirKinds) {
  const auto made = model_.mapped(map());
  std::vector<std::string> keys;
  for (const auto& tensor : made) keys.push_back(tensor.first);
  EXPECT_THAT(keys, ::testing::ElementsAre("0.mixer.norm", "0.mixer.x", "0.mixer.z", "0.mlp",
                                           "1.attention.norm", "1.attention.weight"));
  EXPECT_THAT(made.at("0.mixer.z"), HasSubstr("(4, 4)"));
  EXPECT_THAT(made.at("0.mixer.x"), HasSubstr("(2, 4)"));
  const RoundTrip trip = round_trip([&] { return model_.open(); }, map());
  EXPECT_EQ(contents_of(*trip.after), contents_of(*model_.open()));
  EXPECT_THAT(model_.error(map({"layout=homogeneous"})),
              HasSubstr("some layers are attention and some are mamba, which Megatron's "
                        "homogeneous layout cannot hold"));
}

TEST_F(HybridModel, ConfigurationsThatContradictTheKeysAreNamed) {
  for (const char* const fits :
       {R"({"pattern": "M*"})", R"({"pattern": "M|*/*"})", R"({"layer_types": ["linear", "*"]})"}) {
    model_.config = fits;
    EXPECT_EQ(model_.mapped(map()).size(), 6) << fits;
  }
  model_.config = R"({"pattern": "MM"})";
  EXPECT_EQ(model_.error(map()),
            "the map 'small' does not fit this checkpoint, which has Hugging Face keys:\n"
            "  layer 1 is 'M' (pattern of config.json), which means mamba, but has '1.qkv', as "
            "attention layers");
  model_.config = R"({"layer_types": ["linear", "*", "*"]})";
  EXPECT_THAT(model_.error(map()),
              HasSubstr("the tensors have 2 layers, but layer_types of config.json lists 3"));
  model_.config = "{}";
  model_.args = Value::dict({{"pattern", "**"}});
  EXPECT_THAT(model_.error(map()),
              HasSubstr("layer 0 is '*' (pattern of args), which means attention, but has '0.in'"));
}

TEST_F(HybridModel, AKindOfLayersThatTheMapLeavesOutIsRefused) {
  model_.config = R"({"pattern": "M*E"})";
  EXPECT_EQ(model_.with("2.norm", {4}).with("2.gate", {2, 4}).error(map()),
            "the map 'small' does not fit this checkpoint, which has Hugging Face keys:\n"
            "  not in the map: '2.gate'\n"
            "  layer 2 is 'E' (pattern of config.json), and the map 'small' has no kind of layers "
            "for that, only mamba or attention\n"
            "  nothing tells whether layer 2 is mamba or attention: it has no key that only one "
            "of them has");
}

TEST_F(HybridModel, ALayerWithoutAKeyThatTellsIsWhatTheConfigurationSays) {
  const Model broken = model_.without("1.qkv");
  EXPECT_THAT(broken.error(map()),
              HasSubstr("nothing tells whether layer 1 is mamba or attention"));
  model_.config = R"({"pattern": "M*"})";
  EXPECT_EQ(model_.without("1.qkv").error(map()),
            "the map 'small' does not fit this checkpoint, which has Hugging Face keys:\n"
            "  missing: '1.qkv'");
  EXPECT_EQ(model_.with("1.in", {6, 4}).error(map()),
            "the map 'small' does not fit this checkpoint, which has Hugging Face keys:\n"
            "  not in the map: '1.qkv'\n"
            "  layer 1 has keys of two kinds of layers: '1.qkv' is for attention, and '1.in' for "
            "mamba");
}

TEST_F(HybridModel, TheStateOfAnOptimizerGoesAlongBetweenLayouts) {
  Model megatron;
  for (const std::string& prefix : {std::string(), std::string("optimizer.state.exp_avg.")}) {
    for (const auto& [key, shape] :
         std::vector<std::pair<std::string, Shape>>{{"0.mixer.norm", {4}},
                                                    {"0.mixer.z", {4, 4}},
                                                    {"0.mixer.x", {2, 4}},
                                                    {"0.mlp", {8, 4}},
                                                    {"1.attention.norm", {4}},
                                                    {"1.attention.weight", {4, 4}}})
      megatron.tensors.emplace_back(prefix + key, shape);
  }
  EXPECT_EQ(megatron.mapped(map({"keys=megatron", "layout=singleton"})),
            contents_of(*megatron.open()));
}

TEST(LayerKinds, ModulesHaveAnExtraStateInLayersThatHaveThem) {
  const auto reader = mapped_reader(hugging_face_of("nemotron_h"), {"auto", {}});  // pattern ME*-ME
  std::vector<std::string> keys;
  for (const BytesStorageMetadata& object : reader->metadata().objects) keys.push_back(object.key);
  const auto state = [](const std::string& module) {
    return "decoder.layers." + module + "._extra_state/shard_0_1";
  };
  EXPECT_THAT(keys, Contains(state("0.mixer.in_proj")));
  EXPECT_THAT(keys, Contains(state("0.mixer.out_proj")));
  EXPECT_THAT(keys, Contains(state("2.self_attention.core_attention")));
  EXPECT_THAT(keys, Not(Contains(state("2.mixer.in_proj"))));
  EXPECT_THAT(keys, Not(Contains(state("0.self_attention.core_attention"))));
}

}  // namespace
}  // namespace dckpt::layer_kinds_test
