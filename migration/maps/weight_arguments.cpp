#include "migration/maps/weight_arguments.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/megatron/model_keys.h"
#include "migration/maps/rotary_order.h"

namespace dckpt {
namespace {

/// The conversions that an argument matters for.
enum class Scope : std::uint8_t {
  kMegatron,  ///< conversions from Megatron's names to others
  kHalves,    ///< the same, and those that divide or join gate and up; rows with `gated` only
  kHf,        ///< an argument of config.json, for both directions
};

/// An argument that neither keys nor shapes show.
struct WeightArgument {
  /// Names in args and in run_config.yaml; flags of one meaning.
  std::vector<std::string_view> names;
  std::vector<std::string_view> usual;  ///< values that maps take for granted
  std::string_view rows;                ///< Megatron's keys that it matters for
  Scope scope;
  std::string_view meaning;
  std::string_view none{};  ///< the value that none stands for; empty: it says nothing
};

const std::vector<WeightArgument>& weight_arguments() {
  using enum Scope;
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

/// Returns a value as text without differences of spelling: "1" for 1.0 and "true" for True. Equal
/// elements of a list count as one. Empty for none and for nested values.
std::string text_of(const Value& value) {
  if (value.is_list()) {
    std::string first, all;
    bool alike = true;
    for (const Value& item : value.items()) {
      const std::string text = item.is_list() ? std::string() : text_of(item);
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
    if (result.second == nullptr || (is_true && text_of(*result.second) == "false"))
      result = {std::string(name), value};
  }
  return result;
}

/// Returns whether the map's author has thought of an argument: a number has that name or is made
/// from it.
bool is_known_to(const KeyMap& map, const WeightArgument& argument) {
  const auto named = [&](const std::string& name) {
    return std::ranges::find(argument.names, name) != argument.names.end();
  };
  return std::ranges::any_of(map.numbers, [&](const MapNumber& number) {
    return named(number.name) || named(number.args_not) ||
           std::ranges::any_of(argument.scope == Scope::kHf ? number.hf : number.args, named);
  });
}

/// Returns whether the model has a row that the argument matters for.
bool has_row(const KeyMap& map, const MapNumbers& numbers, const SourceRows& rows,
             const WeightArgument& argument) {
  for (std::size_t i = 0; i < map.tensors.size(); ++i) {
    const MapRow& row = map.tensors[i];
    const bool wanted = !row.optional && row.layers.empty() && is_active(row, numbers);
    if ((rows.rows[i].form || wanted) && (argument.scope != Scope::kHalves || row.gated) &&
        glob_match(std::string(argument.rows), row.megatron))
      return true;
  }
  return false;
}

/// Keys in Hugging Face files whose tensors have one more axis, of extent 1, than Megatron's.
constexpr std::array<const char*, 1> kSqueezed{"*.moe_statics.e_score_correction_bias"};

}  // namespace

std::pair<std::string, const Value*> find_argument(const Value& config, const std::string& name) {
  for (const WeightArgument& argument : weight_arguments()) {
    if (argument.scope != Scope::kHf &&
        std::ranges::find(argument.names, name) != argument.names.end())
      return find_any(config, argument.names);
  }
  return find_any(config, {name});
}

void require_known_meaning(const KeyMap& map, const MapNumbers& numbers, const SourceRows& rows,
                           const MapTarget& target) {
  const bool from_megatron = rows.side.names == KeyNames::kMegatron;
  const bool renamed =
      target.names.value_or(from_megatron ? KeyNames::kHf : KeyNames::kMegatron) != rows.side.names;
  const bool from_halves = rows.side.layout == MegatronLayout::kSingleton;
  const bool to_halves = target.layout.value_or(rows.side.layout) == MegatronLayout::kSingleton;
  if (renamed) require_rotary_order(map, numbers);
  const ModelConfig& config = numbers.config();
  for (const WeightArgument& argument : weight_arguments()) {
    const bool matters =
        renamed ? from_megatron || argument.scope == Scope::kHf
                : from_megatron && argument.scope == Scope::kHalves && from_halves != to_halves;
    if (!matters || is_known_to(map, argument) || !has_row(map, numbers, rows, argument)) continue;
    const auto require = [&](const Value& from, const char* origin) {
      auto [name, value] = find_any(from, argument.names);
      std::string text = value == nullptr ? "" : text_of(*value);
      if (value == nullptr && from.find(std::string(argument.names.front())) != nullptr) {
        name = argument.names.front();
        text = argument.none;
      }
      if (text.empty() || std::ranges::find(argument.usual, text) != argument.usual.end()) return;
      throw CheckpointError(
          ErrorCode::kUnsupported,
          str_format("the map {} is not for this model: {} is {} ({}), and {}; a map of yours that "
                     "has {} among its numbers says what becomes of it, see docs/maps.md",
                     quote(map.family), name, text, origin, argument.meaning, name));
    };
    if (argument.scope == Scope::kHf) {
      const Value* const text = config.hf.find(kHfTextConfig);
      require(text != nullptr ? *text : config.hf, "config.json");
      continue;
    }
    require(config.args, "args");
    require(config.run_config, "run_config.yaml");
  }
}

void require_padding(const MapRow& row, const Shape& shape, const MapNumbers& numbers) {
  constexpr std::array<const char*, 3> kOfVocabulary{"embedding.word_embeddings.weight",
                                                     "output_layer.weight", "output_layer.bias"};
  const auto words = numbers.find("vocab_size"), padded = numbers.find("padded_vocab_size");
  if (std::ranges::find(kOfVocabulary, row.megatron) == kOfVocabulary.end() ||
      has_step(row.hf.transform, MapStep::kPadRows) || !words || !padded || *words == *padded ||
      shape.empty() || (shape.front() != *words && shape.front() != *padded))
    return;
  throw CheckpointError(
      ErrorCode::kMismatch,
      str_format("a vocabulary of {} rows has {} in Megatron ({}), and {} are here; give the row "
                 "the step pad_rows",
                 *words, *padded, numbers.describe("padded_vocab_size"), shape.front()));
}

void require_halves(const MapRow& row, const Shape& shape, const MapNumbers& numbers) {
  if (row.gated || !is_gated_key(row.megatron) || shape.empty()) return;
  const auto half = numbers.find(row.megatron.find(".experts.experts.") != std::string::npos
                                     ? "moe_ffn_hidden_size"
                                 : row.megatron.find(".shared_experts.") != std::string::npos
                                     ? "moe_shared_expert_intermediate_size"
                                     : "ffn_hidden_size");
  if (!has_step(row.hf.transform, MapStep::kConcatRows) && half.value_or(0) * 2 != shape.front())
    return;
  throw CheckpointError(ErrorCode::kMismatch,
                        str_format("the row makes gate and up ({} rows), whose halves Megatron's "
                                   "singleton layout stores separately; give it 'gated: true'",
                                   shape.front()));
}

void require_axes(const MapRow& row, const Shape& shape) {
  if (shape.size() < 2 && glob_match("*.linear_*.weight", row.megatron) &&
      !glob_match("*norm.weight", row.megatron))
    throw CheckpointError(
        ErrorCode::kMismatch,
        str_format("{} is a matrix in Megatron, and what {} would make of it has the shape {}; the "
                   "first axis of a key without {{e}} counts experts, unless the first step is "
                   "experts_in_rows",
                   quote(row.megatron), quoted_list(row.hf.keys), to_string(shape)));
  constexpr std::array<const char*, 4> kOfOneAxis{"*.bias", "*_bias", "*norm.weight",
                                                  "*layer_norm_weight"};
  const auto matches = [](const auto& globs, const std::string& key) {
    return std::ranges::any_of(globs, [&](const char* glob) { return glob_match(glob, key); });
  };
  const bool lacks_squeeze =
      std::ranges::any_of(row.hf.keys,
                          [&](const std::string& key) { return matches(kSqueezed, key); }) &&
      !has_step(row.hf.transform, MapStep::kSqueeze);
  if (!lacks_squeeze && (shape.size() < 2 || !matches(kOfOneAxis, row.megatron))) return;
  throw CheckpointError(
      ErrorCode::kUnsupported,
      str_format("{} has one axis in Megatron, and {} has another one in Hugging Face files: the "
                 "shape is {}; the step squeeze takes away a first axis of extent 1",
                 quote(row.megatron), quote(row.hf.keys.front()), to_string(shape)));
}

}  // namespace dckpt
