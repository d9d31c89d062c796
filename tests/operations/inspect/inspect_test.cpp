#include "operations/inspect/inspect.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "dist_checkpointing/open/open.h"
#include "mapping/megatron/optimizer_keys.h"
#include "operations/convert/convert.h"
#include "operations/inspect/compatible_readers.h"
#include "operations/inspect/explain.h"
#include "strategies/registry/registry.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::inspect_test {
namespace {

namespace fs = std::filesystem;
using testing::counting;
using ::testing::ElementsAre;
using testing::FakeReader;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Inspect, SumsUpByKindOfContent) {
  FakeReader reader;
  reader.tensor("decoder.weight", DType::kFloat16, {2, 3}, counting<std::uint16_t>(6))
      .tensor("chained_1.optimizer.state.exp_avg.decoder.weight", DType::kFloat32, {2, 3},
              counting<float>(6))
      .tensor("optimizer.state.exp_avg.decoder.weight", DType::kFloat32, {2, 3}, counting<float>(6))
      .object("rng_state/shard_0_1", 7)
      .common(Value::dict({{"iteration", 5}}))
      .write();
  const CheckpointSummary summary = inspect(reader);
  EXPECT_EQ(summary.group(ContentGroup::kWeights).tensors, 1u);
  EXPECT_EQ(summary.group(ContentGroup::kWeights).bytes, 12u);
  EXPECT_EQ(summary.group(ContentGroup::kOptimizer).tensors, 2u);
  EXPECT_EQ(summary.group(ContentGroup::kOptimizer).elements, 12u);
  EXPECT_EQ(summary.group(ContentGroup::kRng).objects, 1u);
  EXPECT_TRUE(summary.group(ContentGroup::kOther).empty());
  EXPECT_EQ(summary.common.at("iteration").as_int(), 5);
  ASSERT_EQ(summary.files.size(), 1u);
  EXPECT_EQ(summary.files[0].name, "data");
  EXPECT_EQ(summary.files[0].bytes, 61u);
}

TEST(Inspect, ListsChunksOnlyWhenAsked) {
  FakeReader reader;
  reader.tensor("w", DType::kFloat32, {4}, counting<float>(4), {{{0}, {1}}, {{1}, {3}}}).write();
  EXPECT_TRUE(inspect(reader).tensors[0].chunks.empty());
  const TensorSummary tensor = inspect(reader, {.chunks = true}).tensors.at(0);
  EXPECT_EQ(tensor.chunk_count, 2u);
  ASSERT_EQ(tensor.chunks.size(), 2u);
  EXPECT_EQ(tensor.chunks[1].box, (Box{{1}, {3}}));
  EXPECT_EQ(tensor.chunks[1].file, "data");
  EXPECT_EQ(tensor.chunks[1].offset, 4u);
}

TEST(Inspect, EachKeyHasItsGroup) {
  const auto group = [](std::string_view key, bool is_object) {
    return name_of(kContentGroupNames, content_group(key, is_object));
  };
  EXPECT_EQ(group("decoder.final_layernorm.weight", false), "weights");
  EXPECT_EQ(group("chained_0.optimizer.state.exp_avg.w", false), "optimizer");
  EXPECT_EQ(group("optimizer.distributed.dp_group_idx_0.param_state/shard_0_1", true), "optimizer");
  EXPECT_EQ(group("rng_state/shard_0.1_1.2", true), "RNG state");
  EXPECT_EQ(group("rng_state.(0, 1).0.cuda_rng_state", false), "RNG state");
  EXPECT_EQ(group("decoder.layers.mlp.linear_fc1._extra_state/shard_0_2", true), "extra state");
  EXPECT_EQ(group("args", true), "other objects");
}

struct Known {
  const char* golden;
  const char* states;  ///< states of the optimizer
  const char* sharding;
  const char* reshardable;
  const char* layout;
};

/// Follows Megatron's own tests of which form can be resumed under which other sizes.
TEST(Inspect, SaysWhatARunMayChange) {
  const auto joined = [](const std::vector<std::string>& texts) {
    std::string line;
    for (const std::string& text : texts) line += (line.empty() ? "" : " ") + text;
    return line;
  };
  const char* const kBuckets =
      "DP only; TP, PP, EP after dckpt convert --optimizer fully_reshardable";
  for (const Known& known :
       {Known{"mcore-0.14-flattened-tp2pp2dp2", "exp_avg exp_avg_sq fp32_param",
              "fully_sharded_model_space", "TP, PP, EP, DP", "TP2 PP2 EP1 DP2 ranks8"},
        Known{"mcore-0.14-zarr-tp2pp1dp2", "exp_avg exp_avg_sq fp32_param",
              "fully_sharded_model_space", "TP, PP, EP, DP", "TP2 PP1 EP1 DP2 ranks4"},
        Known{"mcore-0.14-bucket-space-dp2", "exp_avg exp_avg_sq param",
              "fully_sharded_bucket_space", kBuckets, "TP1 PP1 EP1 DP2 ranks2"},
        Known{"mcore-0.14-dp-zero-tp2pp1dp2", "", "dp_zero_gather_scatter", kBuckets,
              "TP2 PP1 EP1 DP2 ranks4"},
        Known{"mcore-0.16-dp-reshardable-tp2pp1dp2", "exp_avg exp_avg_sq param", "dp_reshardable",
              kBuckets, "TP2 PP1 EP1 DP2 ranks4"},
        Known{"mcore-head-fully-reshardable-tp2pp2dp2", "exp_avg exp_avg_sq param",
              "fully_reshardable", "TP, PP, EP, DP", "TP2 PP2 EP1 DP2 ranks8"},
        Known{"legacy-torch-tp2pp2", "exp_avg exp_avg_sq fp32_param", "fully_sharded_model_space",
              "TP, PP, EP, DP, once converted (dckpt convert --optimizer fully_reshardable)",
              "TP2 PP2 EP1 DP2 ranks8"},
        Known{"dcp-fsdp2-dtensor", "exp_avg exp_avg_sq step", "", "any layout", ""},
        Known{"dcp-hf-safetensors", "", "", "", ""}}) {
    SCOPED_TRACE(known.golden);
    const CheckpointSummary summary = inspect(*open_checkpoint(golden(known.golden)));
    EXPECT_EQ(joined(summary.optimizer.states), known.states);
    EXPECT_EQ(summary.optimizer.sharding, known.sharding);
    EXPECT_EQ(summary.optimizer.reshardable, known.reshardable);
    std::vector<std::string> sizes;
    for (const auto& [name, size] : summary.run.parallel)
      sizes.push_back(name + std::to_string(size));
    EXPECT_EQ(joined(sizes), known.layout);
  }
}

TEST(Inspect, ClaimsNothingThatItCannotKnow) {
  const auto resumed = [](const Value& common, const std::string& state) {
    FakeReader reader;
    reader.tensor("decoder.weight", DType::kFloat32, {2}, counting<float>(2))
        .tensor("optimizer.state.exp_avg." + state, DType::kFloat32, {2}, counting<float>(2))
        .common(common)
        .write();
    const Metadata& metadata = reader.metadata();
    return readers_of({.conventions = find_save_strategy("torch_dist").conventions,
                       .common_file = true,
                       .metadata = metadata,
                       .common = common})
        .optimizer;
  };
  const Value args = Value::dict({{"args", Value::dict({{"num_layers", 1}})}});
  EXPECT_THAT(resumed(args, "decoder.weight"), HasSubstr("Megatron-Core 0.6"));
  EXPECT_THAT(resumed(Value::dict({{"step", 1}}), "decoder.weight"),
              HasSubstr("not known, as the common state has no args"));
  EXPECT_THAT(resumed(args, "renamed.weight"),
              HasSubstr("not known, as 'optimizer.state.exp_avg.renamed.weight' is of no tensor"));

  const auto facts = [](const fs::path& model) {
    const RunFacts run = inspect(*open_checkpoint(model)).run;
    std::string text;
    for (const auto* const numbers : {&run.model, &run.parallel}) {
      for (const auto& [name, number] : *numbers)
        text += name + " " + std::to_string(number) + ", ";
    }
    return text;
  };
  const fs::path pairs = fs::path(DCKPT_TEST_DATA) / "hf_pairs";
  EXPECT_THAT(facts(pairs / "gpt2/mcore"), Not(HasSubstr("query groups")));
  EXPECT_THAT(facts(pairs / "qwen2/mcore"), HasSubstr("query groups 2"));
  TempDir directory;
  convert(pairs / "qwen2/hf", directory / "made", {.source = {.map = {.name = "auto"}}});
  EXPECT_THAT(facts(directory / "made"), Not(HasSubstr("TP"))) << "no run has saved it";
}

TEST(Inspect, KeysThatNoModelOfMegatronHasAreNotCalledReadable) {
  const std::string readable = "Megatron-Core 0.6 and newer, PyTorch DCP";
  struct Case {
    std::vector<std::string> keys;
    std::string readers;
  };
  for (const auto& [keys, readers] : std::vector<Case>{
           {{"decoder.layers.mlp.linear_fc1.weight", "head.weight"}, readable},
           {{"optimizer.state.exp_avg.w"}, readable},
           {{"trainer.transformer.h.0.attn.c_attn.weight", "optimizer.state.exp_avg.w"},
            readable + "; no model of Megatron-Core has keys like "
                       "'trainer.transformer.h.0.attn.c_attn.weight'"},
           {{"visual.blocks.0.mlp.linear_fc1.weight"}, "; no model of Megatron-Core has keys like"},
           {{"model.layers.0.mlp.up_proj.weight"},
            "PyTorch DCP; Megatron-Core finds no keys like 'model.layers.0.mlp.up_proj.weight'"},
       }) {
    FakeReader reader;
    for (const std::string& key : keys)
      reader.tensor(key, DType::kFloat32, {2}, counting<float>(2));
    reader.write();
    const Value common = Value::dict();
    const std::string found =
        readers_of({.conventions = find_save_strategy("torch_dist").conventions,
                    .common_file = true,
                    .metadata = reader.metadata(),
                    .common = common})
            .model;
    EXPECT_THAT(found, HasSubstr(readers));
    EXPECT_EQ(found == readable, readers == readable) << found;
  }
}

TEST(Inspect, ACheckpointThatLacksDataLoadsNowhere) {
  TempDir directory;
  for (const bool cut : {true, false}) {
    const fs::path copy = directory / (cut ? "cut" : "missing");
    fs::copy(golden("mcore-0.16-fully-reshardable-tp2pp2dp2"), copy, fs::copy_options::recursive);
    const fs::path file = copy / "__2_1.distcp";
    fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
    cut ? fs::resize_file(file, fs::file_size(file) - 1) : void(fs::remove(file));
    const Readers readers = inspect(*open_checkpoint(copy)).readers;
    EXPECT_THAT(readers.model, HasSubstr("nothing as it is")) << cut;
    EXPECT_THAT(readers.optimizer, HasSubstr("nothing as it is")) << cut;
  }
}

TEST(Inspect, ASingleFileIsItsOnlyFile) {
  const fs::path file = golden("dcp-hf-safetensors") / "model-00001-of-00002.safetensors";
  const CheckpointSummary summary = inspect(*open_checkpoint(file));
  ASSERT_EQ(summary.files.size(), 1u);
  EXPECT_EQ(summary.files[0].name, file.filename());
  EXPECT_EQ(summary.files[0].bytes, fs::file_size(file));
}

TEST(Inspect, KnowsOptimizerKeys) {
  EXPECT_TRUE(is_optimizer_key("optimizer.state.exp_avg.w"));
  EXPECT_TRUE(is_optimizer_key("chained_12.optimizer.state.exp_avg.w"));
  EXPECT_TRUE(is_optimizer_key("optim.w"));
  EXPECT_TRUE(is_optimizer_key("mp_rank_00_001/distrib_optim.0.param"));
  EXPECT_FALSE(is_optimizer_key("mp_rank_00_001/model.w"));
  EXPECT_FALSE(is_optimizer_key("mp_rank_00_001"));
  EXPECT_FALSE(is_optimizer_key("optimizer"));
  EXPECT_FALSE(is_optimizer_key("chained_x.optimizer.w"));
  EXPECT_FALSE(is_optimizer_key("model.optimizer_head.weight"));
}

TEST(Explain, TellsHowATensorIsCutWhoWroteItAndWhatBelongsToIt) {
  const auto reader = open_checkpoint(golden("mcore-0.14-flattened-tp2pp2dp2"));
  const Explanation found = explain(*reader, "decoder.layers.mlp.linear_fc1.weight");
  EXPECT_EQ(found.grid, (Shape{4, 4, 1}));
  ASSERT_EQ(found.chunks.size(), 16);
  EXPECT_EQ(found.chunks.front().box, (Box{{0, 0, 0}, {1, 32, 32}}));
  EXPECT_EQ(found.chunks.back().box, (Box{{3, 96, 0}, {1, 32, 32}}));
  EXPECT_EQ(found.files.front().rank, 0);
  EXPECT_EQ(found.files.back().rank, 7);
  std::vector<std::string> relations;
  for (const RelatedEntry& entry : found.related) relations.push_back(entry.relation);
  EXPECT_THAT(relations, ElementsAre("exp_avg", "exp_avg_sq", "fp32_param", "extra state",
                                     "extra state", "extra state", "extra state"));

  const Explanation moment = explain(*reader, "optimizer.state.exp_avg.output_layer.weight");
  EXPECT_TRUE(moment.flattened);
  EXPECT_EQ(moment.stored_shape, (Shape{2, 1, 2048}));
  EXPECT_THAT(moment.related.front().key, "optimizer.state.exp_avg_sq.output_layer.weight");

  const Explanation object = explain(*reader, "rng_state/shard_0.0_2.2");
  EXPECT_TRUE(object.is_object);
  EXPECT_EQ(object.chunks.size(), 1);
}

TEST(Explain, AMapsRowIsNamedForKeysOfBothSides) {
  const std::filesystem::path model = std::filesystem::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/hf";
  const OpenOptions options{.map = {"auto", {}}};
  const Explanation query = explain(model, options, "model.layers.1.self_attn.k_proj.weight");
  EXPECT_EQ(query.shape, (Shape{24, 48}));
  ASSERT_TRUE(query.rule);
  EXPECT_EQ(query.rule->map, "qwen2");
  EXPECT_THAT(query.rule->to, ElementsAre("decoder.layers.self_attention.linear_qkv.weight"));
  EXPECT_EQ(query.rule->from.size(), 6) << "three of each layer";
  // The row is in the map that qwen2 extends.
  EXPECT_EQ(query.rule->file, "llama");
  std::ifstream map(std::filesystem::path(DCKPT_TEST_DATA) / "../../configs/maps/llama.yaml");
  std::string line;
  for (int i = 0; i < query.rule->line; ++i) std::getline(map, line);
  EXPECT_THAT(line, HasSubstr("megatron: \"" + query.rule->row + "\""));

  const Explanation made = explain(model, options, "decoder.final_layernorm.weight");
  EXPECT_THAT(made.rule->from, ElementsAre("model.norm.weight"));
  const Explanation object =
      explain(model, options, "decoder.layers.mlp.linear_fc1._extra_state/shard_0_2");
  EXPECT_FALSE(object.rule);
}

TEST(Explain, AKeyThatIsNotThereHasNearOnes) {
  const auto reader = open_checkpoint(golden("mcore-0.14-flattened-tp2pp2dp2"));
  const CheckpointError error =
      testing::error_of([&] { (void)explain(*reader, "output_layer.weigth"); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("did you mean 'output_layer.weight'"));
}

}  // namespace
}  // namespace dckpt::inspect_test
