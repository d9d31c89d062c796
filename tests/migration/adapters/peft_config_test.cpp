#include "migration/adapters/peft_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/formats/json/json.h"
#include "tests/support/expect_error.h"

namespace dckpt::peft_config_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

PeftConfig parsed(const std::string& json) {
  return parse_peft_config(parse_json(as_bytes(json), "config"), "config");
}

CheckpointError refusal(const std::string& json) {
  return error_of([&] { parsed(json); });
}

TEST(PeftConfig, TheFirstPatternThatMatchesAModuleCounts) {
  const PeftConfig config = parsed(R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16,
      "rank_pattern": {"k_proj": 4, "layers\\.1\\.attn\\..*": 2},
      "alpha_pattern": {"^model.layers.0.attn.q_proj": 3, "proj": 99}})");
  EXPECT_EQ(config.rank_of("model.layers.1.attn.k_proj"), 4);
  EXPECT_EQ(config.rank_of("model.layers.1.attn.q_proj"), 2);
  EXPECT_EQ(config.rank_of("model.layers.11.attn.q_proj"), 8);
  EXPECT_EQ(config.rank_of("model.layers.0.attn.lookup_proj"), 8);  // a pattern does not match from
                                                                    // the middle of a word
  EXPECT_EQ(config.alpha_of("model.layers.0.attn.q_proj"), 3);
  EXPECT_EQ(config.alpha_of("vision.model.layers.0.attn.q_proj"), 16);
  EXPECT_FLOAT_EQ(config.scale_of("model.layers.0.attn.v_proj"), 2);
  EXPECT_FLOAT_EQ(config.scale_of("model.layers.0.attn.k_proj"), 4);
}

TEST(PeftConfig, RankStabilizedScalesUseTheSquareRoot) {
  EXPECT_FLOAT_EQ(parsed(R"({"peft_type": "LORA", "r": 16, "lora_alpha": 8, "use_rslora": true})")
                      .scale_of("m"),
                  2);
}

TEST(PeftConfig, MissingFieldsHaveTheDefaultsOfPeft) {
  const PeftConfig config = parsed(R"({"peft_type": "LORA"})");
  EXPECT_EQ(config.rank, 8);
  EXPECT_EQ(config.alpha, 8);
  EXPECT_FALSE(config.root_scaled);
}

TEST(PeftConfig, OtherMethodsAreRefusedByName) {
  const CheckpointError other = refusal(R"({"peft_type": "LOKR"})");
  EXPECT_EQ(other.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(other.message(),
              AllOf(HasSubstr("the adapter is 'LOKR'"), HasSubstr("merge_and_unload")));
  EXPECT_THAT(refusal("{}").message(), HasSubstr("of no known type"));
  const auto with = [](const std::string& field) {
    return refusal(R"({"peft_type": "LORA", )" + field + "}").message();
  };
  EXPECT_THAT(with(R"("use_dora": true)"), HasSubstr("uses DoRA ('use_dora')"));
  EXPECT_THAT(with(R"("trainable_token_indices": [1])"), HasSubstr("rows of the embedding"));
  EXPECT_THAT(with(R"("layer_replication": [[0, 4], [2, 5]])"), HasSubstr("several times"));
  EXPECT_THAT(with(R"("init_lora_weights": "pissa_niter_4")"),
              AllOf(HasSubstr("'pissa_niter_4'"), HasSubstr("path_initial_model")));
}

TEST(PeftConfig, FieldsThatOnlyMatterForTrainingAreNotUnknown) {
  const PeftConfig config = parsed(R"({"peft_type": "LORA", "use_dora": false, "loftq_config": {},
      "init_lora_weights": "gaussian", "lora_dropout": 0.1, "peft_version": "0.21.2",
      "trainable_token_indices": null, "new_off": false, "new_on": {"a": 1}})");
  EXPECT_THAT(config.unknown, ElementsAre("new_on"));
}

TEST(PeftConfig, TargetsAreNamesOrAnExpression) {
  struct Case {
    std::string fields;
    std::vector<std::string> targets, excluded;
  };
  const std::vector<std::string> paths{"q", "layers.0.q", "layers.1.q", "layers.0.eq",
                                       "layers.0.k"};
  for (const auto& [fields, targets, excluded] : std::vector<Case>{
           {R"("target_modules": ["q", "0.k"])",
            {"q", "layers.0.q", "layers.1.q", "layers.0.k"},
            {}},
           {R"("target_modules": ".*0\\.[a-k]")", {"layers.0.k"}, {}},
           {R"("target_modules": ["q"], "exclude_modules": "layers.*")",
            {"q", "layers.0.q", "layers.1.q"},
            {"layers.0.q", "layers.1.q", "layers.0.eq", "layers.0.k"}},
           {R"("target_modules": ["q"], "exclude_modules": ["0.q"])",
            {"q", "layers.0.q", "layers.1.q"},
            {"layers.0.q"}},
           // what they name is not known
           {R"("target_modules": "all-linear")", {}, {}},
           {R"("target_modules": "(?!layers).*")", {}, {}},
           {R"("target_modules": ["q"], "layers_to_transform": [0])", {}, {}},
       }) {
    const PeftConfig config = parsed(R"({"peft_type": "LORA", )" + fields + "}");
    const auto named = [&](const ModuleSet& modules) {
      std::vector<std::string> found;
      std::ranges::copy_if(paths, std::back_inserter(found),
                           [&](const std::string& path) { return modules.has(path); });
      return found;
    };
    EXPECT_EQ(named(config.target_modules), targets) << fields;
    EXPECT_EQ(named(config.exclude_modules), excluded) << fields;
    EXPECT_EQ(config.target_modules.empty(), targets.empty()) << fields;
  }
}

TEST(PeftConfig, FieldsOfAnotherTypeAreCorrupt) {
  for (const char* const field :
       {R"("r": 0)", R"("r": "8")", R"("lora_alpha": -1)", R"("use_rslora": 1)",
        R"("rank_pattern": [1])", R"("rank_pattern": {"q": null})",
        R"("modules_to_save": "lm_head")", R"("modules_to_save": [1])"}) {
    const CheckpointError error = refusal(R"({"peft_type": "LORA", )" + std::string(field) + "}");
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt) << field;
    EXPECT_THAT(error.message(), HasSubstr("is expected to be")) << field;
  }
  EXPECT_EQ(refusal("[]").code(), ErrorCode::kCorrupt);
  EXPECT_THAT(refusal(R"({"peft_type": "LORA", "rank_pattern": {"(?<!x)q": 4}})").message(),
              HasSubstr("the pattern '(?<!x)q' of 'rank_pattern' cannot be used"));
}

}  // namespace
}  // namespace dckpt::peft_config_test
