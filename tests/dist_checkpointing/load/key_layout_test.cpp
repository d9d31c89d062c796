#include "dist_checkpointing/load/key_layout.h"

#include <gmock/gmock.h>

#include "configs/policy/rename.h"

namespace dckpt::key_layout_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(KeyLayout, StackedLayersAndAKeyPerLayerAreRecognizedBothWays) {
  const KeySet stacked = {"decoder.layers.mlp.linear_fc1.weight",
                          "decoder.layers.mlp._extra_state/shard_0_2", "norm"};
  const KeySet per_layer = {"decoder.layers.0.mlp.linear_fc1.weight",
                            "decoder.layers.1.mlp.linear_fc1.weight",
                            "decoder.layers.1.mlp._extra_state/shard_0_1", "norm"};
  EXPECT_THAT(explain_by_layout(per_layer, stacked),
              AllOf(HasSubstr("The checkpoint stacks its layers"), HasSubstr("3 keys ("),
                    HasSubstr("prepend_axis_num = 1")));
  EXPECT_THAT(explain_by_layout(stacked, per_layer),
              AllOf(HasSubstr("The checkpoint has a key per layer"), HasSubstr("2 keys (")));
}

TEST(KeyLayout, NormsOfTheLocalAndTheTransformerEngineSpecGetTheRuleThatRenamesThem) {
  const std::string fused = "decoder.layers.mlp.linear_fc1.layer_norm_weight";
  const std::string own = "decoder.layers.pre_mlp_layernorm.weight";
  EXPECT_THAT(
      explain_by_layout({own}, {fused}),
      AllOf(
          HasSubstr("names norms as Megatron's Transformer Engine spec does"),
          HasSubstr(
              R"({from: 'mlp\.linear_fc1\.layer_norm_(weight|bias)$', to: 'pre_mlp_layernorm.\1'})")));
  EXPECT_EQ(KeyRenamer(std::vector<RenameRule>{{R"(mlp\.linear_fc1\.layer_norm_(weight|bias)$)",
                                                R"(pre_mlp_layernorm.\1)"}})(fused),
            own);
  EXPECT_THAT(
      explain_by_layout({fused}, {own}),
      HasSubstr(
          R"({from: 'pre_mlp_layernorm\.(weight|bias)$', to: 'mlp.linear_fc1.layer_norm_\1'})"));
}

TEST(KeyLayout, BothAtOnceAreSaid) {
  EXPECT_THAT(
      explain_by_layout(
          {"optimizer.state.exp_avg.decoder.layers.3.input_layernorm.weight"},
          {"optimizer.state.exp_avg.decoder.layers.self_attention.linear_qkv.layer_norm_weight"}),
      AllOf(HasSubstr("stacks its layers"), HasSubstr("load: {rename:")));
}

TEST(KeyLayout, OtherKeysAreNotExplained) {
  EXPECT_THAT(explain_by_layout({"decoder.layers.0.w", "other"}, {"decoder.layers.1.w", "norm"}),
              IsEmpty());
  EXPECT_THAT(explain_by_layout({}, {}), IsEmpty());
}

}  // namespace
}  // namespace dckpt::key_layout_test
