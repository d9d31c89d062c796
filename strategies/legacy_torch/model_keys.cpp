#include "strategies/legacy_torch/model_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "mapping/base/format.h"

namespace dckpt {
namespace {

constexpr std::int64_t kLargestNumber = 1'000'000;  // of layers and experts

constexpr std::string_view kLocalExperts = ".experts.local_experts.";
constexpr std::string_view kJoinedExperts = ".experts.experts.";

using Pair = std::pair<std::string_view, std::string_view>;

/// What modules were called before Megatron-Core.
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

constexpr std::array kLocalNorms{
    Pair{".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"},
    Pair{".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"},
};

void replace(std::string& text, const Pair& names) {
  const std::size_t at = text.find(names.first);
  if (at != std::string::npos) text.replace(at, names.first.size(), names.second);
}

/// Takes the number out that follows `marker`, with the dot behind it, if there is one.
std::optional<std::int64_t> take_number(std::string& text, std::string_view marker) {
  const std::size_t at = text.find(marker);
  if (at == std::string::npos) return std::nullopt;
  const char* const begin = text.data() + at + marker.size();
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kLargestNumber) return std::nullopt;
  const bool dot = end != text.data() + text.size() && *end == '.';
  text.erase(at + marker.size(), static_cast<std::size_t>(end - begin) + (dot ? 1U : 0U));
  return number;
}

}  // namespace

std::optional<std::pair<std::int64_t, std::string_view>> split_model_path(std::string_view path) {
  constexpr std::string_view kModel = "model";
  const std::size_t dot = path.find('.');
  if (!path.starts_with(kModel) || dot == std::string_view::npos) return std::nullopt;
  const std::string_view number = path.substr(kModel.size(), dot - kModel.size());
  if (number.size() > 4 || number.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  return std::pair{number.empty() ? 0 : std::stoll(std::string(number)), path.substr(dot + 1)};
}

ModelKey parse_model_key(std::string_view path, bool local_norms) {
  ModelKey key{.name = std::string(path)};
  if (path.starts_with("language_model.")) {
    for (const Pair& names : kOldModules) replace(key.name, names);
  }
  if (key.name.starts_with(kLayersPrefix)) key.layer = take_number(key.name, kLayersPrefix);
  key.expert = take_number(key.name, kLocalExperts);
  if (key.expert) {
    replace(key.name, {kLocalExperts, kJoinedExperts});
  } else if (key.name.find(".mlp.experts.linear_fc") != std::string::npos) {
    for (const std::string_view tensor : {std::string_view(".weight"), std::string_view(".bias"),
                                          kExtraStateSuffix}) {  // "….linear_fc1.weight3"
      if (!key.expert) key.expert = take_number(key.name, tensor);
    }
    if (!key.expert && key.name.ends_with(kExtraStateSuffix)) key.expert = 0;
    if (key.expert) replace(key.name, {".mlp.experts.", ".mlp.experts.experts."});
  }
  if (local_norms) {
    for (const Pair& names : kLocalNorms) replace(key.name, names);
  }
  return key;
}

std::string rank_path(const ModelKey& key, const ModuleNames& names) {
  std::string path = key.name;
  if (names.local_norms) {
    for (const auto& [separate, fused] : kLocalNorms) replace(path, {fused, separate});
  }
  if (key.expert && names.grouped_experts) {
    replace(path, {kJoinedExperts, ".experts."});
    if (*key.expert > 0 || !path.ends_with(kExtraStateSuffix)) path += std::to_string(*key.expert);
  } else if (key.expert) {
    replace(path, {kJoinedExperts, str_format("{}{}.", kLocalExperts, *key.expert)});
  }
  if (key.layer) path.insert(kLayersPrefix.size(), std::to_string(*key.layer) + ".");
  return path;
}

}  // namespace dckpt
