#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/maps/key_map.h"
#include "tests/migration/maps/small_model.h"

namespace dckpt::stepped_layers_test {
namespace {

using testing::contents_of;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::Model;
using testing::object_keys;
using ::testing::Pair;

/// A layer of Hugging Face is Mamba or attention, and an MLP; in Megatron, these are two layers.
KeyMap hybrid() {
  return KeyMap::from_text(R"(version: 1
family: hybrid
numbers:
  num_layers: {hf: n_layers}
  megatron_layers: {args: num_layers, else: num_layers * 2}
kinds:
  - {layers: {mamba: m, attention: a}, hf: kinds}
tensors:
  - {megatron: "decoder.layers.{2l}.mixer.D", layers: mamba, hf: "layers.{l}.mamba.D"}
  - {megatron: "decoder.layers.{2l}.self_attention.linear_proj.weight", layers: attention, hf: "layers.{l}.attn.o.weight"}
  - {megatron: "decoder.layers.{2l+1}.mlp.linear_fc2.weight", hf: "layers.{l}.mlp.down.weight"}
extra_states: ["decoder.layers.{l}.self_attention.core_attention"]
)");
}

Model in_hugging_face() {
  return {.tensors = {{"layers.0.mamba.D", {2}},
                      {"layers.0.mlp.down.weight", {2, 3}},
                      {"layers.1.attn.o.weight", {2, 2}},
                      {"layers.1.mlp.down.weight", {2, 3}}},
          .config = R"({"n_layers": 2, "kinds": ["m", "a"]})"};
}

std::unique_ptr<CheckpointReader> mapped(const Model& model, std::vector<std::string> set = {}) {
  const KeyMap map = hybrid();
  return mapped_reader(model.open(), {"hybrid", std::move(set)}, nullptr, {.map = &map});
}

/// LongCat Flash has two of most modules in a layer, which Megatron has as two layers.
TEST(SteppedLayers, MayHaveTwoOfAModule) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: twice
numbers: {num_layers: {hf: n_layers}}
tensors:
  - {megatron: "decoder.layers.{2l}.mlp.linear_fc2.weight", hf: "layers.{l}.mlps.0.down.weight"}
  - {megatron: "decoder.layers.{2l+1}.mlp.linear_fc2.weight", hf: "layers.{l}.mlps.1.down.weight"}
)");
  const Model model{.tensors = {{"layers.0.mlps.0.down.weight", {2, 3}},
                                {"layers.0.mlps.1.down.weight", {2, 3}},
                                {"layers.1.mlps.0.down.weight", {2, 3}},
                                {"layers.1.mlps.1.down.weight", {2, 3}}},
                    .config = R"({"n_layers": 2})"};
  const auto there = mapped_reader(model.open(), {"twice", {}}, nullptr, {.map = &map});
  const auto hf = contents_of(*model.open());
  EXPECT_THAT(
      contents_of(*there),
      ElementsAre(Pair("decoder.layers.0.mlp.linear_fc2.weight", hf.at(model.tensors[0].first)),
                  Pair("decoder.layers.1.mlp.linear_fc2.weight", hf.at(model.tensors[1].first)),
                  Pair("decoder.layers.2.mlp.linear_fc2.weight", hf.at(model.tensors[2].first)),
                  Pair("decoder.layers.3.mlp.linear_fc2.weight", hf.at(model.tensors[3].first))));
  const RoundTrip trip = round_trip([&] { return model.open(); }, {"twice", {}}, {.map = &map});
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
}

/// Megatron's hybrid models have a key per layer even if all layers are alike.
TEST(SteppedLayers, HybridModelsHaveNoAxisForLayers) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: alike
tensors:
  - {megatron: "decoder.layers.{l}.mixer.D", hf: "layers.{l}.mamba.D"}
  - {megatron: "decoder.final_norm.weight", extra_state: true, hf: "norm.weight"}
  - {megatron: "mtp.layers.0.eh_proj.weight", hf: "mtp.fc.weight"}
)");
  const Model model{.tensors = {{"layers.0.mamba.D", {2}},
                                {"layers.1.mamba.D", {2}},
                                {"norm.weight", {2}},
                                {"mtp.fc.weight", {2, 4}}},
                    .config = "{}"};
  const auto open = [&](std::vector<std::string> set) {
    return mapped_reader(model.open(), {"alike", std::move(set)}, nullptr, {.map = &map});
  };
  EXPECT_TRUE(contents_of(*open({})).contains("decoder.layers.1.mixer.D"));
  EXPECT_THAT(object_keys(*open({})),
              ::testing::UnorderedElementsAre("decoder.final_norm._extra_state/shard_0_1",
                                              "mtp.layers.0.eh_proj._extra_state/shard_0_1"));
  EXPECT_THAT(error_of([&] { open({"layout=homogeneous"}); }).message(),
              HasSubstr("'decoder.final_norm.weight' is the last norm of a hybrid model, which "
                        "Megatron's homogeneous layout cannot hold"));
}

TEST(SteppedLayers, TwoLayersOfMegatronAreOneOfHuggingFace) {
  const auto megatron = mapped(in_hugging_face());
  std::vector<std::string> keys;
  for (const TensorStorageMetadata& tensor : megatron->metadata().tensors)
    keys.push_back(tensor.key);
  EXPECT_THAT(keys, ::testing::UnorderedElementsAre(
                        "decoder.layers.0.mixer.D", "decoder.layers.1.mlp.linear_fc2.weight",
                        "decoder.layers.2.self_attention.linear_proj.weight",
                        "decoder.layers.3.mlp.linear_fc2.weight"));
  EXPECT_THAT(object_keys(*megatron),
              ::testing::UnorderedElementsAre(
                  "decoder.layers.1.mlp.linear_fc2._extra_state/shard_0_1",
                  "decoder.layers.2.self_attention.core_attention._extra_state/shard_0_1",
                  "decoder.layers.2.self_attention.linear_proj._extra_state/shard_0_1",
                  "decoder.layers.3.mlp.linear_fc2._extra_state/shard_0_1"));
  const auto args = megatron->common_state().at("args").as_opaque();
  EXPECT_EQ(args.states[0].at("num_layers").as_int(), 4);
  const KeyMap map = hybrid();
  const auto back =
      mapped_reader(mapped(in_hugging_face()), {"hybrid", {}}, nullptr, {.map = &map});
  EXPECT_EQ(contents_of(*back), contents_of(*in_hugging_face().open()));
}

TEST(SteppedLayers, ALayerWithoutItsOtherHalfIsMissed) {
  EXPECT_THAT(
      error_of([] { mapped(in_hugging_face().without("layers.1.mlp.down.weight")); }).message(),
      HasSubstr("layers.1.mlp.down.weight"));
}

TEST(SteppedLayers, TheHomogeneousLayoutCannotHoldThem) {
  EXPECT_THAT(error_of([] { mapped(in_hugging_face(), {"layout=homogeneous"}); }).message(),
              HasSubstr("there are several layers of Megatron for one of Hugging Face"));
}

TEST(SteppedLayers, ReplaceTheRowsOfAnExtendedMap) {
  const KeyMap map = KeyMap::from_text(R"(version: 1
extends: llama
family: hybrid
tensors:
  - {megatron: "decoder.layers.{2l+1}.mlp.linear_fc2.weight", hf: "layers.{l}.mlp.down.weight"}
)");
  for (const MapRow& row : map.tensors)
    EXPECT_NE(row.megatron, "decoder.layers.{l}.mlp.linear_fc2.weight");
}

}  // namespace
}  // namespace dckpt::stepped_layers_test
