#include "mapping/megatron/model_keys.h"

#include <gtest/gtest.h>

namespace dckpt::model_keys_test {
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
    const ModelKey key = parse_rank_path(path, names.local_norms);
    EXPECT_EQ(rank_path(key, names), path);
  }
}

TEST(ModelKeys, ChunksOfAVirtualPipelineHaveNumbers) {
  EXPECT_EQ(split_model_path("model.a.b"), (std::pair<std::int64_t, std::string_view>(0, "a.b")));
  EXPECT_EQ(split_model_path("model3.a"), (std::pair<std::int64_t, std::string_view>(3, "a")));
  EXPECT_EQ(split_model_path("modelopt.a"), std::nullopt);
  EXPECT_EQ(split_model_path("optimizer.a"), std::nullopt);
}

TEST(ModelKeys, ThoseOfMegatronFsdpAreOfPartsAndComeBack) {
  const ModelKey expert{.name = "decoder.layers.mlp.experts.experts.linear_fc1.weight",
                        .layer = 3,
                        .expert = 12,
                        .half = 'v'};
  EXPECT_EQ(fsdp_key(expert, true), "decoder.layers.3.mlp.experts.linear_fc1.weight12_v");
  EXPECT_EQ(fsdp_key(expert, false),
            "decoder.layers.3.mlp.experts.local_experts.12.linear_fc1.weight_v");
  for (const bool grouped : {true, false}) {
    const ModelKey back = parse_fsdp_key(fsdp_key(expert, grouped));
    EXPECT_EQ(back.name, expert.name);
    EXPECT_EQ(back.layer, 3);
    EXPECT_EQ(back.expert, 12);
    EXPECT_EQ(back.half, 'v');
  }
  for (const char* const key :
       {"output_layer.weight", "decoder.layers.x.weight", "mtp.layers.0.eh_proj.weight_v",
        "decoder.layers.99999999999.mlp.linear_fc2.weight_w",
        "decoder.layers.mlp.experts.linear_fc1.x1", ""}) {
    const ModelKey part = parse_fsdp_key(key);
    EXPECT_EQ(part.name, key);
    EXPECT_FALSE(part.layer || part.expert) << key;
  }
}

TEST(ModelKeys, WhatHasNoNumberStaysAsItIs) {
  for (const std::string key : {"decoder.layers.mlp.experts.experts.linear_fc1._extra_state",
                                "decoder.layers.mlp.experts.experts.linear_fc1.weight"}) {
    EXPECT_EQ(parse_rank_path(key, false).name, key);
    EXPECT_EQ(parse_rank_path(key, false).expert, std::nullopt);
  }
}

TEST(ModelKeys, OneGrammarReadsBothSpellings) {
  for (const std::string name :
       {"decoder.layers.mlp.experts.experts.linear_fc1.weight", "decoder.final_layernorm.weight",
        "decoder.layers.self_attention.linear_qkv.layer_norm_weight"}) {
    const bool layered = has_layer_axis(name), experts = has_expert_axis(name);
    for (const bool grouped : {true, false}) {
      ModelKey key{.name = name};
      if (layered) key.layer = 7;
      if (experts) key.expert = 2;
      const std::string path = rank_path(key, {.grouped_experts = grouped});
      EXPECT_EQ(path, fsdp_key(key, grouped));
      EXPECT_EQ(parse_rank_path(path, false).name, name);
      EXPECT_EQ(parse_fsdp_key(path).expert, key.expert);
    }
  }
}

TEST(ModelKeys, OfMegatronAreToldFromThoseOfTransformers) {
  for (const char* const key :
       {"decoder.layers.mlp.linear_fc1.weight", "decoder.layers.3.self_attention.linear_qkv.weight",
        "module.decoder.layers.mlp.experts.experts.linear_fc1.weight",
        "language_model.decoder.layers.mlp.linear_fc2.weight", "layers.0.mlp.linear_fc1.bias",
        "vision_model.decoder.layers.0.mlp.linear_fc1.weight", "embedding.word_embeddings.weight"})
    EXPECT_TRUE(is_megatron_key(key)) << key;
  for (const char* const key :
       {"model.visual.blocks.0.mlp.linear_fc1.weight", "visual.merger.linear_fc1.weight",
        "model.language_model.layers.0.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_proj.weight", "trainer.transformer.h.0.attn.c_attn.weight"})
    EXPECT_FALSE(is_megatron_key(key)) << key;
}

}  // namespace
}  // namespace dckpt::model_keys_test
