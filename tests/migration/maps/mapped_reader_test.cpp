#include "migration/maps/mapped_reader.h"
#include "migration/maps/map_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "configs/key_map.h"
#include "strategies/storage/memory.h"
#include "strategies/views/rearranged_reader.h"
#include "tests/migration/maps/small_model.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
namespace {

using testing::add_file;
using testing::bytes_of;
using ::testing::Contains;
using testing::contents_of;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using ::testing::HasSubstr;
using testing::hugging_face_of;
using ::testing::IsSupersetOf;
using testing::llama;
using testing::megatron_of;
using testing::Model;
using testing::object_keys;

/// Returns the rows of a matrix, or of the first layer of a stack of matrices.
std::vector<std::string> rows_of(const CheckpointReader& reader, const std::string& key) {
  for (std::size_t i = 0; i < reader.metadata().tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = reader.metadata().tensors[i];
    if (tensor.key != key) continue;
    const Tensor content = read_box(reader, i, whole(tensor.size));
    const auto width = static_cast<std::size_t>(tensor.size.back()) * 2;  // bfloat16
    const std::string_view bytes(reinterpret_cast<const char*>(content.bytes().data()),
                                 content.bytes().size());
    std::vector<std::string> rows;
    for (std::size_t at = 0; at < bytes.size(); at += width)
      rows.emplace_back(bytes.substr(at, width));
    return rows;
  }
  return {};
}

TEST(MappedReader, NeighborsInHuggingFaceFilesOfGlm4BecomeHalvesForPlainRotaryEmbeddings) {
  const auto hf = hugging_face_of("glm4");
  const KeyMapOptions plain{"auto", {"rotary_interleaved=false"}};
  const auto megatron = mapped_reader(hugging_face_of("glm4"), plain);
  const auto query = rows_of(*hf, "model.layers.0.self_attn.q_proj.weight");
  const auto made = rows_of(*megatron, "decoder.layers.self_attention.linear_qkv.weight");
  // Half of the 16 rows of a head are rotary.
  const std::vector<std::size_t> order{0, 2, 4, 6, 1, 3, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  for (std::size_t row = 0; row < order.size(); ++row)
    EXPECT_EQ(made.at(row), query.at(order[row])) << row;
  const RoundTrip trip = round_trip([&] { return hugging_face_of("glm4"); }, plain);
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
}

/// The map is written by someone who does not know the order of rows.
TEST(MappedReader, NeighborsOfBothSidesAreNotTurnedASecondTime) {
  const TempDir folder;
  const auto map = [&](const std::string& numbers, std::vector<std::string> set) {
    const std::string file = (folder.path() / "mine.yaml").string();
    std::ofstream(file)
        << "version: 1\nextends: llama\nfamily: mine\nmodel_types: [glm4]\n"
        << numbers
        << "tensors:\n"
           "  - {megatron: \"decoder.layers.{l}.mlp.linear_fc1.weight\", gated: true, hf: "
           "\"model.layers.{l}.mlp.gate_up_proj.weight\"}\n"
           "  - {megatron: \"decoder.layers.{l}.post_self_attn_layernorm.weight\", hf: "
           "\"model.layers.{l}.post_self_attn_layernorm.weight\"}\n"
           "  - {megatron: \"decoder.layers.{l}.post_mlp_layernorm.weight\", hf: "
           "\"model.layers.{l}.post_mlp_layernorm.weight\"}\n";
    return KeyMapOptions{file, std::move(set)};
  };
  const auto to_hf = [&](const std::string& numbers, std::vector<std::string> set) {
    return contents_of(*mapped_reader(megatron_of("glm4"), map(numbers, std::move(set))));
  };
  EXPECT_EQ(to_hf("", {"vocab_size=100"}), contents_of(*hugging_face_of("glm4")));
  EXPECT_EQ(contents_of(*mapped_reader(hugging_face_of("glm4"), map("", {}))),
            contents_of(*megatron_of("glm4")));
  // A map that ignores the args states that its rows are correct.
  EXPECT_EQ(to_hf("numbers: {rotary_interleaved: {else: false}}\n", {"vocab_size=100"}),
            contents_of(*hugging_face_of("glm4")));
  const CheckpointError error = error_of(
      [&] { mapped_reader(hugging_face_of("glm4"), map("", {"rotary_interleaved=false"})); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(),
              HasSubstr("hf_rotary_interleaved is true (model_type glm4 of config.json)"));
}

TEST(MappedReader, OfOtherModelsOneSaysThatTheirFilesHaveNeighbors) {
  const auto of = [](const std::string& order) {
    return KeyMapOptions{"llama", {"num_attention_heads=2", "num_query_groups=1", order}};
  };
  const auto made = llama().mapped(of("hf_rotary_interleaved=true"));
  EXPECT_EQ(made, llama().mapped(of("rotary_interleaved=false")));
  EXPECT_NE(made, llama().mapped(of("rotary_interleaved=true")));
  const auto args = mapped_reader(llama().open(), of("hf_rotary_interleaved=true"))
                        ->common_state()
                        .at("args")
                        .as_opaque();
  EXPECT_TRUE(args.states[0].at("rotary_interleaved").as_bool());
}

TEST(MappedReader, FlagsThatTensorsShowAreWrittenAndLeadBack) {
  const Model tied = llama().without("lm_head.weight");  // and config.json does not say so
  const auto megatron = mapped_reader(tied.open(), {"llama", {}});
  const auto args = megatron->common_state().at("args").as_opaque();
  EXPECT_FALSE(args.states[0].at("untie_embeddings_and_output_weights").as_bool());
  EXPECT_EQ(contents_of(*mapped_reader(mapped_reader(tied.open(), {"llama", {}}), {"llama", {}})),
            contents_of(*tied.open()));
}

TEST(MappedReader, ARowThatLeavesTheOrderOfQueryAndKeyIsRefusedForMegatronsThatInterleave) {
  const TempDir folder;
  const std::string file = (folder.path() / "own.yaml").string();
  std::ofstream(file) << "version: 1\nextends: llama\nfamily: own\ntensors:\n"
                         "  - megatron: \"decoder.layers.{l}.self_attention.linear_qkv.weight\"\n"
                         "    hf: [\"model.layers.{l}.self_attn.q_proj.weight\",\n"
                         "         \"model.layers.{l}.self_attn.k_proj.weight\",\n"
                         "         \"model.layers.{l}.self_attn.v_proj.weight\"]\n"
                         "    transform: qkv_interleave\n";
  EXPECT_EQ(llama().mapped({file, {}}), llama().mapped({"llama", {}}));
  EXPECT_THAT(llama().error({file, {"rotary_interleaved=true"}}),
              HasSubstr("leaves their order; give it the step rope_interleave"));
  EXPECT_FALSE(
      llama().mapped({file, {"rotary_interleaved=true", "hf_rotary_interleaved=true"}}).empty());
}

TEST(MappedReader, ParametersInAndOutAreCounted) {
  MapReport report;
  const auto contents = llama().mapped({"auto", {"make_vocab_size_divisible_by=4"}}, &report);
  EXPECT_THAT(contents.at("output_layer.weight"), HasSubstr("int32 (12, 8)"));
  EXPECT_EQ(report.keys.elements_in, report.keys.elements_out - report.keys.padding_out);
  EXPECT_EQ(report.keys.padding_out, 2 * 8);
  EXPECT_THAT(messages_of(report.findings),
              Contains(HasSubstr("16 that pad the vocabulary after")));
}

TEST(MappedReader, BiasesOfAttentionAndMlpGoAlongInAllLayersOrNone) {
  Model model = llama();
  for (const std::string& layer :
       {std::string("model.layers.0."), std::string("model.layers.1.")}) {
    for (const auto& [name, rows] : std::map<std::string, std::int64_t>{{"self_attn.q_proj", 8},
                                                                        {"self_attn.k_proj", 4},
                                                                        {"self_attn.v_proj", 4},
                                                                        {"self_attn.o_proj", 8},
                                                                        {"mlp.gate_proj", 6},
                                                                        {"mlp.up_proj", 6},
                                                                        {"mlp.down_proj", 8}})
      model = model.with(layer + name + ".bias", {rows});
  }
  const auto megatron = model.mapped({"auto", {}});
  const std::string layers = "decoder.layers.";
  EXPECT_THAT(megatron.at(layers + "self_attention.linear_qkv.bias"), HasSubstr("int32 (2, 16)"));
  EXPECT_THAT(megatron.at(layers + "self_attention.linear_proj.bias"), HasSubstr("int32 (2, 8)"));
  EXPECT_THAT(megatron.at(layers + "mlp.linear_fc1.bias"), HasSubstr("int32 (2, 12)"));
  EXPECT_THAT(megatron.at(layers + "mlp.linear_fc2.bias"), HasSubstr("int32 (2, 8)"));
  const RoundTrip trip = round_trip([&] { return model.open(); }, {"auto", {}});
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
  EXPECT_THAT(model.without("model.layers.1.mlp.up_proj.bias").error({"auto", {}}),
              HasSubstr("model.layers.1.mlp.up_proj.bias"));
}

TEST(MappedReader, KeysMayLackTheModelsPrefixOrHaveAnother) {
  const auto whole = llama().mapped({"llama", {}});
  Model bare = llama().without("lm_head.weight");
  for (auto& [key, shape] : bare.tensors) key.erase(0, std::string("model.").size());
  auto expected = whole;
  expected.erase("output_layer.weight");
  EXPECT_EQ(bare.mapped({"llama", {"tied=true"}}), expected);

  Model nemo = llama();
  nemo.tensors.clear();
  nemo.config = "{}";
  nemo.args = Value::dict({{"num_attention_heads", 1}, {"num_query_groups", 1}});
  for (const auto& [key, shape] : std::vector<std::pair<std::string, Shape>>{
           {"embedding.word_embeddings.weight", {4, 2}}, {"decoder.final_layernorm.weight", {2}}})
    nemo.tensors.emplace_back("module." + key, shape);
  EXPECT_THAT(nemo.error({"llama", {}}),
              HasSubstr("missing: 'decoder.layers.{l}.self_attention.linear_qkv.weight'"));
}

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
  EXPECT_EQ(report.keys.mtp_layers, 2);
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
  EXPECT_EQ(report.keys.mtp_layers, 1);
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
TEST(MappedReader, LayersForMultiTokenPredictionThatNoRowHasAreDropped) {
  Model model{.tensors = {{"layers.0.up", {2}}, {"layers.1.up", {2}}, {"layers.1.eh", {2}}}};
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: small
numbers: {num_layers: {else: 1}, mtp_num_layers: {else: 1}}
tensors: [{megatron: "decoder.layers.{l}.up", hf: "layers.{l}.up"}]
)");
  const auto source = model.open();
  const MappedKeys mapped = apply_key_map(map, MapNumbers(map, {}, {}), source->metadata());
  EXPECT_EQ(mapped.tensors.size(), 1);
  EXPECT_EQ(mapped.dropped.size(), 2);
  EXPECT_EQ(mapped.dropped[0].why, "layers behind num_hidden_layers, for multi-token prediction");
}

TEST(MappedReader, EveryKeyIsUsedOrNamed) {
  EXPECT_EQ(llama()
                .with("model.layers.0.self_attn.q_norm.weight", {2})
                .with("model.layers.1.self_attn.q_norm.weight", {2})
                .without("model.norm.weight")
                .error({"llama", {}}),
            "the map 'llama' does not fit this checkpoint, which has Hugging Face keys:\n"
            "  not in the map: 'model.layers.{}.self_attn.q_norm.weight' (2 keys)\n"
            "  missing: 'model.norm.weight'");
  MapReport report;
  llama().with("model.layers.0.self_attn.rotary_emb.inv_freq", {1}).mapped({"llama", {}}, &report);
  ASSERT_EQ(report.dropped.size(), 1);
  EXPECT_THAT(report.dropped[0].keys, ElementsAre("model.layers.0.self_attn.rotary_emb.inv_freq"));
  Model other;
  other.tensors = {{"encoder.weight", {1}}};
  EXPECT_EQ(
      other.error({"llama", {}}),
      "the map 'llama' knows no tensor of this checkpoint, neither by Megatron's names nor by "
      "those of Hugging Face; there are 'encoder.weight'");
}

TEST(MappedReader, FusedExpertsAreReadAsTheyAre) {
  Model model = llama();
  std::erase_if(model.tensors,
                [](const auto& tensor) { return tensor.first.find(".mlp.") != std::string::npos; });
  Model fused = model;
  for (const std::string& layer :
       {std::string("model.layers.0.mlp."), std::string("model.layers.1.mlp.")}) {
    model.tensors.emplace_back(layer + "gate.weight", Shape{3, 8});
    fused.tensors.emplace_back(layer + "gate.weight", Shape{3, 8});
    for (const char* const norm : {"q_norm", "k_norm"}) {
      const std::string key = layer.substr(0, layer.size() - 4) + "self_attn." + norm + ".weight";
      fused.tensors.emplace_back(key, Shape{2});
    }
    fused.tensors.emplace_back(layer + "experts.gate_up_proj", Shape{3, 12, 8});
    fused.tensors.emplace_back(layer + "experts.down_proj", Shape{3, 8, 6});
  }
  const auto contents = fused.mapped({"qwen3_moe", {}});
  EXPECT_THAT(contents.at("decoder.layers.mlp.experts.experts.linear_fc1.weight"),
              HasSubstr("int32 (2, 3, 12, 8)"));
  const RoundTrip trip = round_trip([&] { return fused.open(); }, {"qwen3_moe", {}});
  EXPECT_EQ(contents_of(*trip.after), contents_of(*fused.open()));
  // A model of dense and other layers: each layer has its own keys.
  Model mixed = fused;
  std::erase_if(mixed.tensors,
                [](const auto& tensor) { return tensor.first.starts_with("model.layers.1.mlp."); });
  for (const auto& [name, shape] : std::vector<std::pair<std::string, Shape>>{
           {"gate_proj", {6, 8}}, {"up_proj", {6, 8}}, {"down_proj", {8, 6}}})
    mixed.tensors.emplace_back("model.layers.1.mlp." + name + ".weight", shape);
  const auto layers = mixed.mapped({"qwen3_moe", {}});
  EXPECT_TRUE(layers.contains("decoder.layers.0.pre_mlp_layernorm.weight"));
  EXPECT_TRUE(layers.contains("decoder.layers.1.mlp.linear_fc1.layer_norm_weight"));
  EXPECT_THAT(mixed.error({"qwen3_moe", {"layout=homogeneous"}}),
              HasSubstr("some layers are dense and some are moe"));
  const auto local = fused.mapped({"qwen3_moe", {"names=local"}});
  EXPECT_TRUE(local.contains("decoder.layers.mlp.linear_fc1.layer_norm_weight"));
}

TEST(MappedReader, NormsKeepTheirNamesUnlessOthersAreAskedFor) {
  const Model local{.tensors = {{"decoder.layers.mlp.linear_fc1.norm", {2, 4}}}};
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: norms
numbers: {}
tensors:
  - megatron: "decoder.layers.{l}.pre_mlp.norm"
    local: "decoder.layers.{l}.mlp.linear_fc1.norm"
    hf: "{l}.norm"
)");
  const auto source = local.open();
  const auto first_key = [&](KeyNames names, std::optional<bool> local_names) {
    const MapTarget target{
        .names = names, .layout = MegatronLayout::kSingleton, .local_names = local_names};
    return apply_key_map(map, MapNumbers(map, {}, {}), source->metadata(), target)
        .tensors.front()
        .key;
  };
  EXPECT_EQ(first_key(KeyNames::kMegatron, {}), "decoder.layers.0.mlp.linear_fc1.norm");
  EXPECT_EQ(first_key(KeyNames::kMegatron, true), "decoder.layers.0.mlp.linear_fc1.norm");
  EXPECT_EQ(first_key(KeyNames::kMegatron, false), "decoder.layers.0.pre_mlp.norm");
  EXPECT_EQ(first_key(KeyNames::kHf, {}), "0.norm");
}

TEST(MappedReader, TheStateOfAnOptimizerGoesAlongBetweenLayouts) {
  Model model;
  for (const char* const prefix : {"", "optimizer.state.exp_avg."}) {
    model.tensors.emplace_back(prefix + std::string("decoder.final_layernorm.weight"), Shape{4});
    model.tensors.emplace_back(prefix + std::string("decoder.layers.mlp.linear_fc1.weight"),
                               Shape{2, 6, 4});
  }
  model.tensors.emplace_back("optimizer.other", Shape{3});
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: small
numbers: {}
tensors:
  - megatron: "decoder.layers.{l}.mlp.linear_fc1.weight"
    gated: true
    hf: ["{l}.gate", "{l}.up"]
    transform: concat_rows
  - {megatron: decoder.final_layernorm.weight, hf: norm}
ignore: {megatron: ["optimizer.*"]}
)");
  const auto source = model.open();
  const MapTarget target{.names = KeyNames::kMegatron, .layout = MegatronLayout::kSingleton};
  const MappedKeys mapped = apply_key_map(map, MapNumbers(map, {}, {}), source->metadata(), target);
  EXPECT_EQ(mapped.state_elements, 4 + 48);
  ASSERT_EQ(mapped.dropped.size(), 1);
  EXPECT_THAT(mapped.dropped[0].keys, ElementsAre("optimizer.other"));
  const auto contents = contents_of(*rearranged_reader(model.open(), {.tensors = mapped.tensors}));
  EXPECT_EQ(contents.size(), 10);
  EXPECT_TRUE(
      contents.contains("optimizer.state.exp_avg.decoder.layers.1.mlp.linear_fc1.weight_v"));
}

TEST(MappedReader, LayersOfDifferentShapesNeedKeysOfTheirOwn) {
  const Model model{.tensors = {{"0.up", {2}}, {"1.up", {3}}}};
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: uneven
numbers: {}
tensors: [{megatron: "layers.{l}.up", hf: "{l}.up"}]
)");
  const auto source = model.open();
  const auto apply = [&](MegatronLayout layout) {
    return apply_key_map(map, MapNumbers(map, {}, {}), source->metadata(), {.layout = layout});
  };
  EXPECT_THAT(
      error_of([&] { apply(MegatronLayout::kHomogeneous); }).message(),
      HasSubstr("layers.{l}.up: 'layers.up' would have layers or experts of the shapes (2,) "
                "and (3,); choose layout=non-homogeneous"));
  EXPECT_EQ(apply(MegatronLayout::kNonHomogeneous).tensors.size(), 2);
}

TEST(MappedReader, ModulesWithoutTensorsMayBeThoseOfExperts) {
  Model model{.tensors = {{"0.0.up", {2, 2}}, {"0.1.up", {2, 2}}}};
  const KeyMap map = KeyMap::from_text(R"(version: 1
family: experts
numbers: {}
tensors: [{megatron: "layers.{l}.experts.{e}.fc1.weight", extra_state: false, hf: "{l}.{e}.up"}]
extra_states: ["layers.{l}.experts.{e}.act"]
)");
  const auto source = model.open();
  const MapTarget target{.layout = MegatronLayout::kSingleton};
  const auto states =
      apply_key_map(map, MapNumbers(map, {}, {}), source->metadata(), target).extra_states;
  ASSERT_EQ(states.size(), 2);
  EXPECT_EQ(states[1].key, "layers.0.experts.1.act._extra_state/shard_0_1");
}

/// The permutation is the inverse of transformers' convert_llama_weights_to_hf.py.
TEST(MappedReader, RotaryHalvesBecomeNeighborsForMegatronsThatInterleave) {
  Model model = llama();
  model.config.insert(1, R"("head_dim": 4, )");
  for (const std::string& layer : {std::string("0"), std::string("1")}) {
    const std::string prefix = "model.layers." + layer + ".self_attn.";
    model = model.with(prefix + "q_proj.weight", {16, 8}).with(prefix + "k_proj.weight", {8, 8});
    model = model.with(prefix + "v_proj.weight", {8, 8}).with(prefix + "o_proj.weight", {8, 16});
  }
  const KeyMapOptions interleaved{"llama", {"rotary_interleaved=true", "layout=non-homogeneous"}};
  const auto values = [&](const KeyMapOptions& options) {
    const auto reader = mapped_reader(model.open(), options);
    for (std::size_t i = 0; i < reader->metadata().tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = reader->metadata().tensors[i];
      if (tensor.key != "decoder.layers.1.self_attention.linear_qkv.weight") continue;
      return read_box(*reader, i, whole(tensor.size));
    }
    return Tensor();
  };
  const Tensor plain = values({"llama", {"layout=non-homogeneous"}});
  const Tensor made = values(interleaved);
  for (std::int64_t row = 0; row < 32; ++row) {  // rows of each group: two heads of query, key,
                                                 // value
    const std::int64_t head = row / 4;
    const std::int64_t from = head % 4 == 3 ? row : head * 4 + row % 2 * 2 + row % 4 / 2;
    EXPECT_EQ(made.data<std::int32_t>()[row * 8], plain.data<std::int32_t>()[from * 8]) << row;
  }
  const RoundTrip trip = round_trip([&] { return model.open(); }, interleaved);
  EXPECT_EQ(contents_of(*trip.after), contents_of(*model.open()));
  // On the way back, the args state the order.
  const auto back = mapped_reader(mapped_reader(model.open(), interleaved), {"llama", {}});
  EXPECT_EQ(contents_of(*back), contents_of(*model.open()));
}

/// The keys are those of files of transformers 4 (LLaVA) and 5.
TEST(MappedReader, OfModelsOfTextAndImagesTheTextIsMapped) {
  const auto multimodal = [](const std::string& of_all, const std::string& of_layers) {
    Model model{.tensors = {}, .config = llama().config};
    for (const auto& [key, shape] : llama().tensors)
      model.tensors.emplace_back(
          key.starts_with("model.") ? of_layers + key.substr(6) : of_all + key, shape);
    model.config = R"({"model_type": "llava", "text_config": )" + model.config + "}";
    model.tensors.emplace_back("vision_tower.layers.0.weight", Shape{2});
    model.tensors.emplace_back("vision_tower.layers.1.weight", Shape{2});
    return model;
  };
  const auto expected = llama().mapped({"llama", {}});
  for (const auto& [of_all, of_layers] : std::vector<std::pair<std::string, std::string>>{
           {"language_model.", "language_model.model."}, {"", "model.language_model."}}) {
    const Model model = multimodal(of_all, of_layers);
    MapReport report;
    EXPECT_EQ(model.mapped({"auto", {"parts=text"}}, &report), expected) << of_layers;
    EXPECT_THAT(messages_of(report.findings),
                Contains("dropped: 'vision_tower.layers.{}.weight' (2 keys), as "
                         "only the language model is wanted (parts=text)"));
    EXPECT_THAT(model.error({"auto", {}}),
                HasSubstr("not of the language model: 'vision_tower.layers.{}.weight' (2 keys)\n"
                          "  the map is for the language model; --set parts=text drops"));
    EXPECT_THAT(model.with(of_layers + "extra", {1}).error({"auto", {"parts=text"}}),
                HasSubstr("not in the map: '" + of_layers + "extra'"));
    const RoundTrip trip = round_trip([&] { return model.open(); },
                                      {"auto", {"parts=text", "prefix=language_model."}});
    EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
    EXPECT_EQ(contents_of(*trip.after).size(), llama().tensors.size());
  }
}

/// Qwen 3 Next is published with keys that have no number beside those of its layer.
TEST(MappedReader, ALayerForMultiTokenPredictionMayHaveKeysWithoutANumber) {
  const auto model = [](bool with_mtp) {
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
    const auto megatron = [&] { return mapped_reader(model(with_mtp).open(), {"auto", {}}); };
    const auto made = contents_of(*megatron());
    for (const char* const key :
         {"mtp.layers.0.eh_proj.weight", "mtp.layers.0.final_layernorm.weight",
          "mtp.layers.0.transformer_layer.self_attention.linear_qkv.weight"})
      EXPECT_EQ(made.contains(key), with_mtp) << key;
    const Value layers = model_config(*megatron()).args.at("mtp_num_layers");
    EXPECT_EQ(layers, with_mtp ? Value(1) : Value());
    EXPECT_EQ(contents_of(*mapped_reader(megatron(), {"qwen3_next", {}})),
              contents_of(*model(with_mtp).open()));
  }
  const Model damaged = model(true).without("mtp.layers.0.self_attn.q_norm.weight");
  EXPECT_THAT(damaged.error({"auto", {}}),
              HasSubstr("missing: 'mtp.layers.0.self_attn.q_norm.weight'"));
}

TEST(MappedReader, PartsWithoutAPrefixOfTheLanguageModelMustBeTowers) {
  EXPECT_THAT(llama().with("vision.weight", {1}).error({"llama", {"parts=text"}}),
              HasSubstr("'model.language_model.', and there are none; a map that names the other "
                        "parts in 'towers' leaves them out"));
  // A model that is only text stays what it is.
  EXPECT_EQ(llama().mapped({"llama", {"parts=text"}}), llama().mapped({"llama", {}}));
}

TEST(MappedReader, KeysMayGetThePrefixOfALanguageModel) {
  const auto megatron = [](const std::vector<std::string>& set) {
    return mapped_reader(llama().open(), {"llama", set});
  };
  const auto there = contents_of(*megatron({"prefix=language_model."}));
  EXPECT_TRUE(there.contains("language_model.decoder.final_layernorm.weight"));
  EXPECT_THAT(object_keys(*megatron({"prefix=language_model."})),
              Contains("language_model.decoder.final_layernorm._extra_state/shard_0_1"));
  EXPECT_EQ(contents_of(*mapped_reader(megatron({"prefix=language_model."}), {"llama", {}})),
            contents_of(*llama().open()));
  const auto back =
      contents_of(*mapped_reader(megatron({}), {"llama", {"prefix=model.language_model."}}));
  EXPECT_TRUE(back.contains("model.language_model.layers.1.mlp.up_proj.weight"));
  EXPECT_TRUE(back.contains("lm_head.weight"));
  EXPECT_THAT(error_of([&] { megatron({"prefix=model.language_model."}); }).message(),
              HasSubstr("keys cannot start with 'model.language_model.' here, but with "
                        "'language_model.'"));
  // Between Megatron's layouts objects are kept, and those of other parts stay unchanged.
  auto source = mapped_reader(megatron({"prefix=language_model."}),
                              {"llama", {"keys=megatron", "layout=singleton"}});
  EXPECT_THAT(object_keys(*source), Contains("decoder.final_layernorm._extra_state/shard_0_1"));
}

}  // namespace
}  // namespace dckpt
