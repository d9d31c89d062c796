#include "configs/maps/known_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "mapping/base/text.h"

namespace dckpt::known_keys_test {
namespace {

using ::testing::Contains;

TEST(KnownKeys, HaveTheNamesOfDistributedCheckpoints) {
  for (const char* const key :
       {"embedding.word_embeddings.weight", "output_layer.bias", "decoder.final_norm.weight",
        "decoder.layers.{l}.self_attention.linear_qkv.layer_norm_bias",
        "decoder.layers.{l}.mlp.experts.experts.{e}.linear_fc1.weight",
        "mtp.layers.{m}.mtp_model_layer.self_attention.q_layernorm.weight"})
    EXPECT_THAT(known_keys(), Contains(key));
  for (const std::string& key : {known_keys().front(), std::string("mtp.layers.0.eh_proj.weight"),
                                 std::string("decoder.layers.12.mlp.linear_fc2.weight")}) {
    EXPECT_FALSE(find_unknown(key)) << key;
    EXPECT_FALSE(find_unknown("language_model." + key)) << key;
  }
}

TEST(KnownKeys, MisspelledKeysHaveANearestOne) {
  for (const auto& [key, nearest] : std::map<std::string, std::string>{
           {"decoder.layers.{l}.self_atention.linear_proj.weight",
            "decoder.layers.{l}.self_attention.linear_proj.weight"},
           {"mtp.layers.0.eh_prj.weight", "mtp.layers.{m}.eh_proj.weight"},
           {"decoder.layers.{l}.mlp.linear_fc1.wieght", "decoder.layers.{l}.mlp.linear_fc1.weight"},
           {"decodr.final_layernorm.weight", "decoder.final_layernorm.weight"},
           {"output_layr.weight", "output_layer.weight"},
           {"embeding.word_embeddings.weight", "embedding.word_embeddings.weight"},
           {"decoder.layers.{l}.mlp.experts.{e}.linear_fc2.weight",
            "decoder.layers.{l}.mlp.experts.experts.{e}.linear_fc2.weight"}}) {
    const auto unknown = find_unknown(key);
    ASSERT_TRUE(unknown) << key;
    EXPECT_EQ(unknown->nearest, nearest);
  }
  const auto unknown = find_unknown("decoder.layers.{l}.x");
  ASSERT_TRUE(unknown);
  EXPECT_FALSE(unknown->nearest);
}

TEST(KnownKeys, ModulesBesideTheModelMayHaveAnyName) {
  for (const char* const key :
       {"vision_model.decoder.layers.{v}.self_atention.linear_qkv.weight", "visual.merger.weight",
        "model.norm.weight", "a", "critic_head.weight", ""})
    EXPECT_FALSE(find_unknown(key)) << key;
}

/// Returns the words in backquotes.
std::vector<std::string> quoted_words(const std::string& cell) {
  const std::vector<std::string> pieces = split(cell, '`');
  std::vector<std::string> words;
  for (std::size_t i = 1; i < pieces.size(); i += 2) words.push_back(pieces[i]);
  return words;
}

/// The table of docs/maps.md has every module with its tensors, and no other.
TEST(KnownKeys, AreInTheDocumentation) {
  std::map<std::string, std::vector<std::string>> documented, known;
  std::ifstream file("docs/maps.md");
  ASSERT_TRUE(file);
  bool in_table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) in_table = line == "### Megatron's keys";
    const std::vector<std::string> cells = split(line, '|');
    if (!in_table || cells.size() < 4) continue;
    for (const std::string& module : quoted_words(cells[1]))
      EXPECT_TRUE(documented.emplace(module, quoted_words(cells[2])).second) << module;
  }
  for (const KnownModule& module : known_modules())
    known.emplace(module.path, split(module.tensors, ' '));
  EXPECT_EQ(documented, known);
}

}  // namespace
}  // namespace dckpt::known_keys_test
