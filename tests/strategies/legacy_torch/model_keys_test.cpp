#include "strategies/legacy_torch/model_keys.h"

#include <gtest/gtest.h>

namespace dckpt {
namespace {

TEST(ModelKeys, PathsOfARankComeBackUnderBothKindsOfModules) {
  const ModuleNames local{.local_norms = true};
  const ModuleNames grouped{.grouped_experts = true};
  for (const auto& [path, names] : {
           std::pair{"embedding.word_embeddings.weight", local},
           {"decoder.layers.11.input_layernorm.weight", local},
           {"decoder.layers.0.pre_mlp_layernorm.bias", local},
           {"decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", ModuleNames{}},
           {"decoder.layers.0.pre_mlp_layernorm.weight", ModuleNames{}},
           {"decoder.layers.3.mlp.experts.local_experts.12.linear_fc1.weight", local},
           {"decoder.layers.3.mlp.experts.linear_fc2.weight7", grouped},
           {"decoder.layers.3.mlp.experts.linear_fc2._extra_state", grouped},
           {"decoder.layers.3.mlp.experts.linear_fc2._extra_state2", grouped},
       }) {
    const ModelKey key = parse_model_key(path, names.local_norms);
    EXPECT_EQ(rank_path(key, names), path);
  }
}

TEST(ModelKeys, ChunksOfAVirtualPipelineHaveNumbers) {
  EXPECT_EQ(split_model_path("model.a.b"), (std::pair<std::int64_t, std::string_view>(0, "a.b")));
  EXPECT_EQ(split_model_path("model3.a"), (std::pair<std::int64_t, std::string_view>(3, "a")));
  EXPECT_EQ(split_model_path("modelopt.a"), std::nullopt);
  EXPECT_EQ(split_model_path("optimizer.a"), std::nullopt);
}

}  // namespace
}  // namespace dckpt
