#include "migration/maps/mapped_reader.h"
#include "migration/maps/numbers/map_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "configs/maps/key_map.h"
#include "strategies/storage/memory.h"
#include "strategies/views/rearranged_reader.h"
#include "tests/migration/maps/small_model.h"
#include "tests/support/temp_dir.h"

namespace dckpt::mapped_reader_test {
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

TEST(MappedReader, LocalNamesThatAMapLacksAreANote) {
  const auto noted = [](const std::string& model, const std::string& names) {
    MapReport report;
    mapped_reader(hugging_face_of(model), {"auto", {names}}, &report);
    return std::ranges::count(report.findings, FindingCode::kNoEffect, &Finding::code);
  };
  EXPECT_EQ(noted("nemotron_h", "names=local"), 1);
  EXPECT_EQ(noted("nemotron_h", "names=te"), 0);
  EXPECT_EQ(noted("mixtral", "names=local"), 0);
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
  EXPECT_EQ(report.keys.counts.elements_in,
            report.keys.counts.elements_out - report.keys.counts.padding_out);
  EXPECT_EQ(report.keys.counts.padding_out, 2 * 8);
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
  EXPECT_EQ(other.error({"llama", {}}),
            "the map 'llama' matches no tensor of this checkpoint, neither by Megatron's names nor "
            "by those of Hugging Face; the checkpoint has 'encoder.weight'");
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
  EXPECT_EQ(mapped.counts.state_elements, 4 + 48);
  ASSERT_EQ(mapped.left.dropped.size(), 1);
  EXPECT_THAT(mapped.left.dropped[0].keys, ElementsAre("optimizer.other"));
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

TEST(MappedReader, PartsWithoutAPrefixOfTheLanguageModelMustBeTowers) {
  EXPECT_THAT(llama().with("vision.weight", {1}).error({"llama", {"parts=text"}}),
              HasSubstr("'model.language_model.', and there are none; a map that names the other "
                        "parts in 'towers' leaves them out"));
  // A model that is only text stays what it is.
  EXPECT_EQ(llama().mapped({"llama", {"parts=text"}}), llama().mapped({"llama", {}}));
}

/// Returns the elements of a tensor as text.
std::string elements_of(const CheckpointReader& reader, const std::string& key) {
  const auto& tensors = reader.metadata().tensors;
  const auto at = std::ranges::find(tensors, key, &TensorStorageMetadata::key) - tensors.begin();
  if (at == std::ssize(tensors)) return "none";
  const Tensor content = read_box(reader, static_cast<std::size_t>(at), whole(tensors[at].size));
  return {reinterpret_cast<const char*>(content.bytes().data()), content.bytes().size()};
}

/// transformers 5 has one tensor of all experts in memory, and writes one of each into files.
TEST(MappedReader, ExpertsAreFusedOrSingleInOneStep) {
  const auto source = hugging_face_of("mixtral");
  const auto fused = [] {
    return mapped_reader(hugging_face_of("mixtral"),
                         {"mixtral", {"from=hf", "keys=hf", "experts=fused"}});
  };
  const auto made = fused();
  const std::string module = "model.layers.1.block_sparse_moe.experts.", to = "model.layers.1.mlp.";
  std::string gate_up, down;
  for (const std::string expert : {"0", "1", "2", "3"}) {
    gate_up += elements_of(*source, module + expert + ".w1.weight") +
               elements_of(*source, module + expert + ".w3.weight");
    down += elements_of(*source, module + expert + ".w2.weight");
  }
  EXPECT_EQ(elements_of(*made, to + "experts.gate_up_proj"), gate_up);
  EXPECT_EQ(elements_of(*made, to + "experts.down_proj"), down);
  EXPECT_EQ(elements_of(*made, to + "gate.weight"),
            elements_of(*source, "model.layers.1.block_sparse_moe.gate.weight"));
  for (const std::vector<std::string>& set : {std::vector<std::string>{"experts=single"}, {}}) {
    std::vector<std::string> all{"from=hf", "keys=hf"};
    all.insert(all.end(), set.begin(), set.end());
    EXPECT_EQ(contents_of(*mapped_reader(fused(), {"mixtral", all})), contents_of(*source));
  }
  const auto from_megatron =
      mapped_reader(megatron_of("mixtral"), {"mixtral", {"vocab_size=100", "experts=fused"}});
  EXPECT_EQ(contents_of(*from_megatron), contents_of(*made));
  const RoundTrip trip = round_trip([] { return megatron_of("mixtral"); },
                                    {"mixtral", {"vocab_size=100", "experts=fused"}});
  EXPECT_EQ(contents_of(*trip.after), contents_of(*trip.before));
}

TEST(MappedReader, AFormOfExpertsThatTheMapDoesNotKnowIsRefused) {
  EXPECT_THAT(
      error_of([] {
        mapped_reader(megatron_of("gpt_oss"), {"gpt_oss", {"vocab_size=100", "experts=single"}});
      }).message(),
      HasSubstr("the map 'gpt_oss' knows experts in one tensor alone"));
  EXPECT_THAT(llama().error({"llama", {"experts=fused"}}),
              HasSubstr("the setting experts is for results with Hugging Face's keys"));
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
}  // namespace dckpt::mapped_reader_test
