#include "migration/maps/numbers/weight_arguments.h"

#include <algorithm>
#include <cmath>

#include "mapping/base/format.h"

namespace dckpt {

const std::vector<WeightArgument>& weight_arguments() {
  using enum ArgumentScope;
  static const std::vector<WeightArgument> all{
      {{"apply_layernorm_1p", "layernorm_zero_centered_gamma"},
       {"false"},
       "*norm*",
       kMegatron,
       "the weights of norms lack the 1 that Hugging Face has in them"},
      {{"swiglu", "gated_linear_unit", "quick_geglu"},
       {"true"},
       "*",
       kHalves,
       "linear_fc1 has no gate, and its halves are not gate and up"},
      {{"moe_mlp_glu_interleave_size"},
       {"0"},
       "*.experts.experts.*",
       kHalves,
       "gate and up of experts alternate in blocks of this many rows"},
      {{"moe_shared_expert_glu_interleave_size"},
       {"0"},
       "*.shared_experts.*",
       kHalves,
       "gate and up of shared experts alternate in blocks of this many rows"},
      {{"glu_linear_offset"}, {"0"}, "*linear_fc1*", kMegatron, "it is added to what up yields"},
      {{"rotary_interleaved"},
       {"false"},
       "*.self_attention.*",
       kMegatron,
       "rows of query and key that turn together are neighbors"},
      {{"attention_output_gate"},
       {"false"},
       "*.linear_qkv.*",
       kMegatron,
       "linear_qkv has a gate beside query, key and value"},
      {{"multi_latent_attention"},
       {"false"},
       "*.linear_qkv.*",
       kMegatron,
       "attention is latent and has other weights"},
      {{"qk_l2_norm"},
       {"false"},
       "*.linear_qkv.*",
       kMegatron,
       "query and key are normalized without a weight that says so"},
      {{"softmax_type"},
       {"vanilla", "learnable"},
       "*.self_attention.*",
       kMegatron,
       "the softmax of attention has an offset that is not a weight"},
      {{"apply_residual_connection_post_layernorm"},
       {"false"},
       "*norm*",
       kMegatron,
       "residuals start behind the norms"},
      {{"moe_apply_probs_on_input"},
       {"false"},
       "*.experts.experts.*",
       kMegatron,
       "the router scales what enters experts, not what leaves them"},
      {{"use_mup"}, {"false"}, "*", kMegatron, "embeddings and outputs are scaled"},
      {{"embedding_multiplier"}, {"1"}, "embedding.*", kHf, "embeddings are scaled"},
      {{"scale_emb"}, {"1"}, "embedding.*", kHf, "embeddings are scaled"},
      {{"scale_depth"}, {}, "*", kHf, "what layers add is scaled"},
      {{"attention_multiplier"}, {}, "*.self_attention.*", kHf, "attention has a scale of its own"},
      {{"logit_scale"}, {"1"}, "*", kHf, "what the output layer yields is scaled"},
      {{"residual_multiplier"}, {"1"}, "*", kHf, "what layers add is scaled"},
      {{"logits_scaling"}, {"1"}, "*", kHf, "what the output layer yields is scaled"},
      {{"lm_head_multiplier"}, {"1"}, "*", kHf, "what the output layer yields is scaled"},
      {{"key_multiplier"}, {"1"}, "*.self_attention.*", kHf, "keys are scaled"},
      {{"attention_in_multiplier"},
       {"1"},
       "*.self_attention.*",
       kHf,
       "attention's input is scaled"},
      {{"attention_out_multiplier"},
       {"1"},
       "*.self_attention.*",
       kHf,
       "attention's output is scaled"},
      {{"ssm_in_multiplier"}, {"1"}, "*.mixer.*", kHf, "the mixer's input is scaled"},
      {{"ssm_out_multiplier"}, {"1"}, "*.mixer.*", kHf, "the mixer's output is scaled"},
      {{"ssm_multipliers"}, {"1"}, "*.mixer.*", kHf, "parts of the mixer are scaled"},
      {{"mlp_multipliers"}, {"1"}, "*.mlp.*", kHf, "the gate and the output of MLPs are scaled"},
      {{"rope_interleave"},
       {"true"},
       "*.linear_kv_up_proj.*",
       kHf,
       "rows that turn together are in two halves, and Megatron's latent attention has neighbors",
       "false"},
  };
  return all;
}

std::string argument_text(const Value& value) {
  if (value.is_list()) {
    std::string first, all;
    bool alike = true;
    for (const Value& item : value.items()) {
      const std::string text = item.is_list() ? std::string() : argument_text(item);
      if (all.empty()) first = text;
      alike = alike && text == first;
      all += (all.empty() ? "" : ", ") + text;
    }
    return alike ? first : all;
  }
  if (value.is(Value::Kind::kBool)) return value.as_bool() ? "true" : "false";
  if (value.is_int()) return std::to_string(value.as_int());
  if (value.is(Value::Kind::kFloat)) {
    const double number = value.as_float();
    return number == std::floor(number) && std::abs(number) < 1e15
               ? std::to_string(static_cast<std::int64_t>(number))
               : str_format("{}", number);
  }
  return value.is_str() ? value.as_str() : std::string();
}

std::pair<std::string, const Value*> find_any(const Value& config,
                                              const std::vector<std::string_view>& names) {
  std::pair<std::string, const Value*> result{};
  for (const std::string_view name : names) {
    const Value* const value = config.find(std::string(name));
    if (value == nullptr || value->is_none()) continue;
    const bool is_true = value->is(Value::Kind::kBool) && value->as_bool();
    if (result.second == nullptr || (is_true && argument_text(*result.second) == "false"))
      result = {std::string(name), value};
  }
  return result;
}

std::pair<std::string, const Value*> find_argument(const Value& config, const std::string& name) {
  for (const WeightArgument& argument : weight_arguments()) {
    if (argument.scope != ArgumentScope::kHf &&
        std::ranges::find(argument.names, name) != argument.names.end())
      return find_any(config, argument.names);
  }
  return find_any(config, {name});
}

}  // namespace dckpt
