// Layers for multi-token prediction, which Megatron numbers separately.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/maps/key_map.h"
#include "migration/maps/mapped_reader.h"
#include "migration/maps/numbers/map_numbers.h"
#include "tests/migration/maps/small_model.h"

namespace dckpt::multi_token_prediction_test {
namespace {

using testing::add_file;
using testing::bytes_of;
using ::testing::Contains;
using testing::contents_of;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;
using testing::hugging_face_of;
using ::testing::IsSupersetOf;
using testing::megatron_of;
using testing::Model;
using testing::object_keys;

/// A pair of DeepSeek V3 with one or two layers more, for multi-token prediction, as published: its
/// last layer again, with a projection and norms.
class MultiTokenPrediction : public ::testing::Test {
 protected:
  static void copy(const CheckpointReader& from, std::size_t tensor, const std::string& key,
                   FakeReader& to) {
    const TensorStorageMetadata& stored = from.metadata().tensors[tensor];
    const Tensor content = read_box(from, tensor, whole(stored.size));
    const auto add = [&]<typename T>(T) {
      const auto* const values = content.data<const T>();
      to.tensor(key, content.dtype(), stored.size,
                std::vector<T>(values, values + content.numel()));
    };
    item_size(content.dtype()) == 2 ? add(std::uint16_t{}) : add(0.0F);
  }

  /// `last` is the prefix of keys of the last layer; each key is added again with `more` and a
  /// number.
  static std::unique_ptr<FakeReader> with_layers(const CheckpointReader& pair,
                                                 const std::string& last,
                                                 const std::vector<std::string>& more,
                                                 const std::vector<std::string>& others) {
    auto reader = std::make_unique<FakeReader>();
    for (std::size_t i = 0; i < pair.metadata().tensors.size(); ++i) {
      const std::string& key = pair.metadata().tensors[i].key;
      copy(pair, i, key, *reader);
      if (!key.starts_with(last)) continue;
      for (const std::string& layer : more) copy(pair, i, layer + key.substr(last.size()), *reader);
    }
    for (const std::string& key : others)
      reader->tensor<float>(key, DType::kFloat32, {2}, {float(key.size()), 1});
    reader->common(pair.common_state()).write();
    return reader;
  }

  static std::unique_ptr<FakeReader> megatron() {
    return with_layers(*megatron_of("deepseek_v3"), "decoder.layers.2.",
                       {"mtp.layers.0.transformer_layer.", "mtp.layers.1.transformer_layer."},
                       {"mtp.layers.0.eh_proj.weight", "mtp.layers.0.enorm.weight",
                        "mtp.layers.0.hnorm.weight", "mtp.layers.0.final_layernorm.weight",
                        "mtp.layers.1.eh_proj.weight", "mtp.layers.1.enorm.weight",
                        "mtp.layers.1.hnorm.weight", "mtp.layers.1.final_layernorm.weight"});
  }

  static std::unique_ptr<FakeReader> hugging_face(int said) {
    auto reader = std::make_unique<FakeReader>();
    const auto pair = hugging_face_of("deepseek_v3");
    for (std::size_t i = 0; i < pair->metadata().tensors.size(); ++i) {
      const std::string& key = pair->metadata().tensors[i].key;
      copy(*pair, i, key, *reader);
      for (const std::string& layer : {std::string("3."), std::string("4.")}) {
        if (key.starts_with("model.layers.2."))
          copy(*pair, i, "model.layers." + layer + key.substr(15), *reader);
      }
    }
    // The values are those of Megatron's keys.
    for (const std::string& layer : {std::string("3."), std::string("4.")}) {
      const auto add = [&](const std::string& key, float value) {
        reader->tensor<float>("model.layers." + layer + key, DType::kFloat32, {2}, {value, 1});
      };
      add("eh_proj.weight", 27), add("enorm.weight", 25), add("hnorm.weight", 25);
      add("shared_head.norm.weight", 35);
      add("embed_tokens.weight", 0), add("shared_head.head.weight", 0);
    }
    reader->write();
    std::string config = bytes_of(testing::hf_pair("deepseek_v3") / "hf/config.json");
    const std::string none = R"("num_nextn_predict_layers": 0)";
    config.replace(config.find(none), none.size(),
                   R"("num_nextn_predict_layers": )" + std::to_string(said));
    add_file(*reader, "config.json", config);
    return reader;
  }

  static std::map<std::string, std::string> published() {
    auto contents = contents_of(*hugging_face(2));
    for (const std::string& layer :
         {std::string("model.layers.3."), std::string("model.layers.4.")})
      contents.erase(layer + "embed_tokens.weight"),
          contents.erase(layer + "shared_head.head.weight");
    return contents;
  }
};

TEST_F(MultiTokenPrediction, LayersBehindTheModelsAreMegatronsOwn) {
  MapReport report;
  const auto there = mapped_reader(hugging_face(2), {"auto", {}}, &report);
  EXPECT_EQ(contents_of(*there), contents_of(*megatron()));
  EXPECT_EQ(report.keys.counts.mtp_layers, 2);
  EXPECT_THAT(messages_of(report.findings),
              Contains("dropped: 'model.layers.{}.embed_tokens.weight' (2 keys), "
                       "as the map ignores them"));
  EXPECT_THAT(object_keys(*there),
              IsSupersetOf({"mtp.layers.1.eh_proj._extra_state/shard_0_1",
                            "mtp.layers.0.transformer_layer.mlp.experts.experts.linear_fc1."
                            "_extra_state/shard_7_8"}));
  EXPECT_EQ(contents_of(*mapped_reader(megatron(), {"deepseek_v3", {"vocab_size=100"}})),
            published());
  // On the way back, the args give the number of layers.
  EXPECT_EQ(contents_of(
                *mapped_reader(mapped_reader(hugging_face(2), {"auto", {}}), {"deepseek_v3", {}})),
            published());
  const RoundTrip trip = round_trip([] { return hugging_face(2); }, {"auto", {}});
  EXPECT_EQ(contents_of(*trip.after), published());
  EXPECT_EQ(contents_of(*trip.before), published());
}

/// The model has multi-head attention, and its pair contains the layer.
TEST_F(MultiTokenPrediction, CopiesOfEmbeddingAndHeadInGlm45AreDropped) {
  const auto pair = hugging_face_of("glm4_moe");
  FakeReader published;
  for (std::size_t i = 0; i < pair->metadata().tensors.size(); ++i)
    copy(*pair, i, pair->metadata().tensors[i].key, published);
  for (const char* const copied : {"embed_tokens.weight", "shared_head.head.weight"})
    published.tensor<float>("model.layers.3." + std::string(copied), DType::kFloat32, {1}, {1});
  published.write();
  add_file(published, "config.json", bytes_of(testing::hf_pair("glm4_moe") / "hf/config.json"));
  MapReport report;
  const auto megatron =
      mapped_reader(std::make_unique<FakeReader>(std::move(published)), {"auto", {}}, &report);
  EXPECT_EQ(contents_of(*megatron), contents_of(*megatron_of("glm4_moe")));
  EXPECT_EQ(report.keys.counts.mtp_layers, 1);
  EXPECT_THAT(messages_of(report.findings),
              Contains("dropped: 'model.layers.3.embed_tokens.weight', as the map "
                       "ignores them"));
}

TEST_F(MultiTokenPrediction, LayoutsHoldTheSameLayers) {
  const auto apart =
      mapped_reader(megatron(), {"deepseek_v3", {"keys=megatron", "layout=singleton"}});
  EXPECT_TRUE(contents_of(*apart).contains(
      "mtp.layers.1.transformer_layer.mlp.experts.experts.7.linear_fc1.weight_v"));
  EXPECT_EQ(contents_of(*mapped_reader(
                mapped_reader(megatron(), {"deepseek_v3", {"keys=megatron", "layout=singleton"}}),
                {"deepseek_v3", {"keys=megatron", "layout=non-homogeneous"}})),
            contents_of(*megatron()));
}

TEST_F(MultiTokenPrediction, ConfigurationsThatSayOtherwiseAreNamed) {
  EXPECT_THAT(error_of([] {
                mapped_reader(hugging_face(1), {"auto", {}});
              }).message(),
              HasSubstr("the tensors have 2 layers for multi-token prediction, but mtp_num_layers "
                        "is 1 (num_nextn_predict_layers of config.json)"));
  // transformers writes none of these layers.
  MapReport report;
  const auto none =
      mapped_reader(hugging_face_of("deepseek_v3"), {"auto", {"mtp_num_layers=1"}}, &report);
  EXPECT_TRUE(none->common_state().at("args").as_opaque().states[0].at("mtp_num_layers").is_none());
  EXPECT_THAT(messages_of(report.findings),
              Contains("there are no layers for multi-token prediction, although "
                       "mtp_num_layers is 1 (as set)"));
}

/// A custom map may have no rows for these layers.
TEST(MultiTokenPredictionMaps, MayHaveNoRowsForTheseLayers) {
  Model model{.tensors = {{"layers.0.up", {2}}, {"layers.1.up", {2}}, {"layers.1.eh", {2}}}};
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: small
numbers: {num_layers: {else: 1}, mtp_num_layers: {else: 1}}
tensors: [{megatron: "decoder.layers.{l}.up", hf: "layers.{l}.up"}]
)");
  const auto source = model.open();
  const MappedKeys mapped = apply_key_map(map, MapNumbers(map, {}, {}), source->metadata());
  EXPECT_EQ(mapped.tensors.size(), 1);
  EXPECT_EQ(mapped.left.dropped.size(), 2);
  EXPECT_EQ(mapped.left.dropped[0].why,
            "layers behind num_hidden_layers, for multi-token prediction");
}

/// Qwen 3 Next is published with keys that have no number beside those of its layer.
TEST(MultiTokenPredictionMaps, MayHaveKeysWithoutANumber) {
  const auto qwen = [](bool with_mtp) {
    Model model{.tensors = {{"model.embed_tokens.weight", {11, 8}},
                            {"model.norm.weight", {8}},
                            {"lm_head.weight", {11, 8}}},
                .config = R"({"model_type": "qwen3_next", "num_hidden_layers": 1, "hidden_size": 8,
                              "layer_types": ["full_attention"], "num_attention_heads": 2,
                              "num_key_value_heads": 1, "head_dim": 4, "num_experts": 2,
                              "moe_intermediate_size": 3, "shared_expert_intermediate_size": 5,
                              "vocab_size": 11})"};
    const auto add_layer = [&](const std::string& layer) {
      for (const auto& [name, shape] :
           std::vector<std::pair<std::string, Shape>>{{"input_layernorm", {8}},
                                                      {"post_attention_layernorm", {8}},
                                                      {"self_attn.q_proj", {16, 8}},
                                                      {"self_attn.k_proj", {4, 8}},
                                                      {"self_attn.v_proj", {4, 8}},
                                                      {"self_attn.o_proj", {8, 8}},
                                                      {"self_attn.q_norm", {4}},
                                                      {"self_attn.k_norm", {4}},
                                                      {"mlp.gate", {2, 8}},
                                                      {"mlp.shared_expert_gate", {1, 8}},
                                                      {"mlp.shared_expert.up_proj", {5, 8}},
                                                      {"mlp.shared_expert.gate_proj", {5, 8}},
                                                      {"mlp.shared_expert.down_proj", {8, 5}}})
        model.tensors.emplace_back(layer + name + ".weight", shape);
      for (const std::string& expert : {layer + "mlp.experts.0.", layer + "mlp.experts.1."}) {
        model.tensors.emplace_back(expert + "gate_proj.weight", Shape{3, 8});
        model.tensors.emplace_back(expert + "up_proj.weight", Shape{3, 8});
        model.tensors.emplace_back(expert + "down_proj.weight", Shape{8, 3});
      }
    };
    add_layer("model.layers.0.");
    if (!with_mtp) return model;
    add_layer("mtp.layers.0.");
    model.tensors.emplace_back("mtp.fc.weight", Shape{8, 16});
    for (const char* const norm : {"norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"})
      model.tensors.emplace_back("mtp." + std::string(norm) + ".weight", Shape{8});
    return model;
  };
  for (const bool with_mtp : {false, true}) {
    const auto megatron = [&] { return mapped_reader(qwen(with_mtp).open(), {"auto", {}}); };
    const auto made = contents_of(*megatron());
    for (const char* const key :
         {"mtp.layers.0.eh_proj.weight", "mtp.layers.0.final_layernorm.weight",
          "mtp.layers.0.transformer_layer.self_attention.linear_qkv.weight"})
      EXPECT_EQ(made.contains(key), with_mtp) << key;
    const Value layers = model_config(*megatron()).args.at("mtp_num_layers");
    EXPECT_EQ(layers, with_mtp ? Value(1) : Value());
    EXPECT_EQ(contents_of(*mapped_reader(megatron(), {"qwen3_next", {}})),
              contents_of(*qwen(with_mtp).open()));
  }
  const Model damaged = qwen(true).without("mtp.layers.0.self_attn.q_norm.weight");
  EXPECT_THAT(damaged.error({"auto", {}}),
              HasSubstr("missing: 'mtp.layers.0.self_attn.q_norm.weight'"));
}

}  // namespace
}  // namespace dckpt::multi_token_prediction_test
