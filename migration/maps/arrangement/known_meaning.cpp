#include "migration/maps/arrangement/known_meaning.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "mapping/base/error.h"
#include "mapping/megatron/model_keys.h"
#include "migration/maps/numbers/rotary_order.h"
#include "migration/maps/numbers/weight_arguments.h"

namespace dckpt {
namespace {

/// Returns whether the map's author has thought of an argument: a number has that name or is made
/// from it.
bool is_known_to(const KeyMap& map, const WeightArgument& argument) {
  const auto named = [&](const std::string& name) {
    return std::ranges::find(argument.names, name) != argument.names.end();
  };
  return std::ranges::any_of(map.numbers, [&](const MapNumber& number) {
    return named(number.name) || named(number.args_not) ||
           std::ranges::any_of(argument.scope == ArgumentScope::kHf ? number.hf : number.args,
                               named);
  });
}

/// Returns whether the model has a row that the argument matters for.
bool has_row(const KeyMap& map, const MapNumbers& numbers, const SourceRows& rows,
             const WeightArgument& argument) {
  for (std::size_t i = 0; i < map.tensors.size(); ++i) {
    const MapRow& row = map.tensors[i];
    const bool wanted = !row.optional && row.layers.empty() && is_active(row, numbers);
    if ((rows.rows[i].form || wanted) && (argument.scope != ArgumentScope::kHalves || row.gated) &&
        glob_match(std::string(argument.rows), row.megatron))
      return true;
  }
  return false;
}

/// Keys in Hugging Face files whose tensors have one more axis, of extent 1, than Megatron's.
constexpr std::array<const char*, 1> kSqueezed{"*.moe_statics.e_score_correction_bias"};

}  // namespace

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
    const bool matters = renamed ? from_megatron || argument.scope == ArgumentScope::kHf
                                 : from_megatron && argument.scope == ArgumentScope::kHalves &&
                                       from_halves != to_halves;
    if (!map.is_megatrons() && argument.scope != ArgumentScope::kHf) continue;
    if (!matters || is_known_to(map, argument) || !has_row(map, numbers, rows, argument)) continue;
    const auto require = [&](const Value& from, const char* origin) {
      auto [name, value] = find_any(from, argument.names);
      std::string text = value == nullptr ? "" : argument_text(*value);
      if (value == nullptr && from.find(std::string(argument.names.front())) != nullptr) {
        name = argument.names.front();
        text = argument.none;
      }
      if (text.empty() || std::ranges::find(argument.usual, text) != argument.usual.end()) return;
      throw_error(ErrorCode::kUnsupported,
                  "the map {} is not for this model: {} is {} ({}), and {}; a map of yours that "
                  "has {} among its numbers says what becomes of it, see docs/maps.md",
                  quote(map.family), name, text, origin, argument.meaning, name);
    };
    if (argument.scope == ArgumentScope::kHf) {
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
  throw_error(ErrorCode::kMismatch,
              "a vocabulary of {} rows has {} in Megatron ({}), but {} here; give the row "
              "the step pad_rows",
              *words, *padded, numbers.describe("padded_vocab_size"), shape.front());
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
  throw_error(ErrorCode::kMismatch,
              "the row makes gate and up ({} rows), whose halves Megatron's "
              "singleton layout stores separately; give it 'gated: true'",
              shape.front());
}

void require_axes(const MapRow& row, const Shape& shape) {
  if (shape.size() < 2 && glob_match("*.linear_*.weight", row.megatron) &&
      !glob_match("*norm.weight", row.megatron))
    throw_error(ErrorCode::kMismatch,
                "{} is a matrix in Megatron, and what {} would make of it has the shape {}; the "
                "first axis of a key without {{e}} counts experts, unless the first step is "
                "experts_in_rows",
                quote(row.megatron), quoted_list(row.hf.keys), to_string(shape));
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
  throw_error(ErrorCode::kUnsupported,
              "{} has one axis in Megatron, but {} has another one in Hugging Face files: its "
              "shape is {}; the step squeeze removes a first axis of extent 1",
              quote(row.megatron), quote(row.hf.keys.front()), to_string(shape));
}

}  // namespace dckpt
