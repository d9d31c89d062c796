#include "mapping/megatron/model_keys.h"

#include <algorithm>
#include <array>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kLargestNumber = 1'000'000;  // limit of layer and expert numbers

constexpr std::string_view kLayers = ".layers.";
constexpr std::string_view kExperts = ".experts.";
constexpr std::string_view kLocalExperts = ".experts.local_experts.";
constexpr std::string_view kJoinedExperts = ".experts.experts.";
constexpr std::string_view kDigits = "0123456789";

using Pair = std::pair<std::string_view, std::string_view>;

/// The names that modules had before Megatron-Core.
constexpr std::array kOldModules{
    Pair{"language_model.", ""},
    Pair{"transformer.layers.", "decoder.layers."},
    Pair{"encoder.layers.", "decoder.layers."},
    Pair{"transformer.final_", "decoder.final_"},
    Pair{"encoder.final_", "decoder.final_"},
    Pair{".attention.", ".self_attention."},
    Pair{".query_key_value.", ".linear_qkv."},
    Pair{".self_attention.dense.", ".self_attention.linear_proj."},
    Pair{".dense_h_to_4h.", ".linear_fc1."},
    Pair{".dense_4h_to_h.", ".linear_fc2."},
    Pair{".post_attention_layernorm.", ".pre_mlp_layernorm."},
    Pair{".post_attention_norm.", ".pre_mlp_layernorm."},
    Pair{".input_norm.", ".input_layernorm."},
    Pair{"decoder.final_norm.", "decoder.final_layernorm."},
};

constexpr std::array kNorms{
    NormSpelling{".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"},
    NormSpelling{".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"},
    NormSpelling{".q_layernorm.", ".linear_q_up_proj.layer_norm_"},
    NormSpelling{".kv_layernorm.", ".linear_kv_up_proj.layer_norm_"},
};
constexpr std::size_t kNormsOfLayers = 2;  // the first of the norms above

void replace(std::string& text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

/// Takes a number out of the key, up to the next dot, with the dot, or to the end.
std::optional<std::int64_t> take_number(std::string& key, std::size_t at) {
  const std::size_t dot = std::min(key.find('.', at), key.size());
  const auto number = parse_u64(std::string_view(key).substr(at, dot - at));
  if (!number || *number > kLargestNumber) return std::nullopt;
  key.erase(at, dot + 1 - at);
  return static_cast<std::int64_t>(*number);
}

bool is_prediction(std::string_view key) {
  return key.starts_with("mtp.") || key.find(".mtp.") != key.npos;
}

/// Returns the position where the layers' number is or would be; npos if the key is not one of a
/// layer.
std::size_t behind_layers(std::string_view key) {
  const std::size_t at = key.find(kLayers);
  return at == key.npos || is_prediction(key) ? key.npos : at + kLayers.size();
}

std::string_view without_digits(std::string_view name) {
  return name.substr(0, name.find_last_not_of(kDigits) + 1);
}

/// Recognizes "weight" and "bias", also followed by a number.
bool is_weight_or_bias(std::string_view name) {
  const std::string_view word = without_digits(name);
  return word == "weight" || word == "bias";
}

/// Changes "….experts.linear_fc1.weight3" to "….experts.experts.linear_fc1.weight", and returns 3.
/// With `extra_state`, extra state counts, too; that of the first expert has no number.
std::optional<std::int64_t> take_grouped_expert(std::string& key, bool extra_state) {
  const std::size_t last = key.rfind('.');
  const std::size_t at = key.rfind(kExperts, last);
  if (last == key.npos || at == key.npos ||
      !std::string_view(key).substr(at + kExperts.size()).starts_with("linear_fc"))
    return std::nullopt;
  const std::string_view name = std::string_view(key).substr(last);
  const std::string_view word = without_digits(name);
  if (!is_weight_or_bias(name.substr(1)) && !(extra_state && word == kExtraStateSuffix))
    return std::nullopt;
  std::optional<std::int64_t> number = 0;
  if (name != kExtraStateSuffix) number = take_number(key, last + word.size());
  if (number) key.replace(at, kExperts.size(), kJoinedExperts);
  return number;
}

/// Takes the expert's number out of a key in which each expert has a number or a module. A key of
/// torch_dist has none.
std::optional<std::int64_t> take_expert(std::string& key, bool extra_state) {
  if (has_expert_axis(key)) return std::nullopt;
  const std::size_t at = key.find(kLocalExperts);
  if (at == key.npos) return take_grouped_expert(key, extra_state);
  const auto number = take_number(key, at + kLocalExperts.size());
  if (number) key.replace(at, kLocalExperts.size(), kJoinedExperts);
  return number;
}

void put_expert(std::string& key, std::int64_t expert, bool grouped) {
  const std::string number = std::to_string(expert);
  if (!grouped) {
    replace(key, kJoinedExperts, str_format("{}{}.", kLocalExperts, number));
    return;
  }
  replace(key, kJoinedExperts, kExperts);
  if (expert > 0 || !key.ends_with(kExtraStateSuffix)) key += number;
}

}  // namespace

std::optional<std::pair<std::int64_t, std::string_view>> split_model_path(std::string_view path) {
  constexpr std::string_view kModel = "model";
  const std::size_t dot = path.find('.');
  if (!path.starts_with(kModel) || dot == std::string_view::npos) return std::nullopt;
  const std::string_view number = path.substr(kModel.size(), dot - kModel.size());
  if (number.size() > 4 || number.find_first_not_of(kDigits) != std::string_view::npos)
    return std::nullopt;
  return std::pair{number.empty() ? 0 : std::stoll(std::string(number)), path.substr(dot + 1)};
}

ModelKey parse_rank_path(std::string_view path, bool local_norms) {
  ModelKey key{.name = std::string(path)};
  if (path.starts_with("language_model.")) {
    for (const auto& [old, name] : kOldModules) replace(key.name, old, name);
  }
  if (key.name.starts_with(kLayersPrefix)) key.layer = take_number(key.name, kLayersPrefix.size());
  key.expert = take_expert(key.name, true);
  if (local_norms) {
    for (const NormSpelling& norm : norm_spellings()) replace(key.name, norm.local, norm.fused);
  }
  return key;
}

std::string rank_path(const ModelKey& key, const ModuleNames& names) {
  std::string path = key.name;
  if (names.local_norms) {
    for (const NormSpelling& norm : norm_spellings()) replace(path, norm.fused, norm.local);
  }
  if (key.expert) put_expert(path, *key.expert, names.grouped_experts);
  if (key.layer) path.insert(kLayersPrefix.size(), std::to_string(*key.layer) + ".");
  return path;
}

ModelKey parse_fsdp_key(std::string_view key) {
  ModelKey parsed{.name = std::string(key)};
  if ((key.ends_with("_w") || key.ends_with("_v")) && is_gated_key(key.substr(0, key.size() - 2))) {
    parsed.half = key.back();
    parsed.name.resize(key.size() - 2);
  }
  parsed.expert = take_expert(parsed.name, false);
  if (const std::size_t at = behind_layers(parsed.name); at != key.npos)
    parsed.layer = take_number(parsed.name, at);
  return parsed;
}

std::string fsdp_key(const ModelKey& key, bool grouped_experts) {
  std::string text = key.name;
  if (key.layer) text.insert(behind_layers(text), str_format("{}.", *key.layer));
  if (key.expert) put_expert(text, *key.expert, grouped_experts);
  if (key.half != 0) text += {'_', key.half};
  return text;
}

std::span<const NormSpelling> norm_spellings(bool latent) {
  return std::span(kNorms).first(latent ? kNorms.size() : kNormsOfLayers);
}

std::string with_fused_norms(std::string key) {
  if (behind_layers(key) == key.npos) return key;
  for (const NormSpelling& norm : norm_spellings()) replace(key, norm.local, norm.fused);
  return key;
}

std::string with_local_norms(std::string key) {
  if (behind_layers(key) == key.npos) return key;
  for (const NormSpelling& norm : norm_spellings()) replace(key, norm.fused, norm.local);
  return key;
}

bool is_gated_key(std::string_view key) {
  constexpr std::string_view kModuleName = ".linear_fc1.";
  const std::size_t at = key.rfind(kModuleName);
  if (at == key.npos || !is_weight_or_bias(key.substr(at + kModuleName.size()))) return false;
  const std::string_view before = key.substr(0, at + 1);
  return before.starts_with("mlp.") || before.find(".mlp.") != before.npos;
}

bool has_layer_axis(std::string_view key) {
  const std::size_t at = behind_layers(key);
  return at != key.npos && (at == key.size() || kDigits.find(key[at]) == kDigits.npos);
}

bool has_expert_axis(std::string_view key) {
  return key.find(kJoinedExperts) != key.npos;
}

bool is_extra_state(std::string_view key) {
  return key.find(kExtraStateSuffix) != key.npos;
}

std::string_view without_wrappers(std::string_view key) {
  constexpr std::string_view kModule = "module.";
  while (key.starts_with(kModule)) key.remove_prefix(kModule.size());
  return key;
}

bool is_megatron_key(std::string_view key) {
  constexpr std::array<std::string_view, 3> kBegins{"embedding.word_embeddings.", "output_layer.",
                                                    "decoder.final_layernorm."};
  constexpr std::array<std::string_view, 3> kParts{".self_attention.linear_", ".mlp.linear_fc",
                                                   ".mlp.experts.experts."};
  // Vision towers of transformers have modules of these names, too, but not in `layers`.
  const std::size_t layers = key.starts_with(kLayers.substr(1)) ? 0 : key.find(kLayers);
  return std::ranges::any_of(kBegins, [&](auto begin) { return key.starts_with(begin); }) ||
         (layers != key.npos && std::ranges::any_of(kParts, [&](auto part) {
            return key.find(part, layers) != key.npos;
          }));
}

const std::string* find_foreign_key(const Metadata& metadata) {
  constexpr std::array<std::string_view, 4> kForeign{"model.embed_tokens.", "model.layers.",
                                                     "transformer.h.", "model.module."};
  const auto foreign = std::ranges::find_if(metadata.tensors, [&](const auto& tensor) {
    return std::ranges::any_of(kForeign, [&](auto begin) { return tensor.key.starts_with(begin); });
  });
  return foreign == metadata.tensors.end() ? nullptr : &foreign->key;
}

}  // namespace dckpt
