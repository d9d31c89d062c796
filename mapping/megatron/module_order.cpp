#include "mapping/megatron/module_order.h"

#include <algorithm>
#include <array>
#include <utility>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

/// The modules of a layer, in the order of their declaration.
constexpr std::array<std::string_view, 20> kOrderedModules{"input_layernorm.",
                                                           "self_attention.linear_proj.",
                                                           "self_attention.linear_qkv.",
                                                           "self_attention.linear_q_proj.",
                                                           "self_attention.linear_q_down_proj.",
                                                           "self_attention.linear_q_up_proj.",
                                                           "self_attention.linear_kv_down_proj.",
                                                           "self_attention.linear_kv_up_proj.",
                                                           "self_attention.q_layernorm.",
                                                           "self_attention.kv_layernorm.",
                                                           "self_attention.k_layernorm.",
                                                           "pre_cross_attn_layernorm.",
                                                           "cross_attention.linear_proj.",
                                                           "cross_attention.linear_q.",
                                                           "cross_attention.linear_kv.",
                                                           "pre_mlp_layernorm.",
                                                           "mlp.router.",
                                                           "mlp.experts.",
                                                           "mlp.shared_experts.",
                                                           "mlp.linear_fc"};
constexpr std::array<std::string_view, 3> kEmbeddings{"word_embeddings.", "position_embeddings.",
                                                      "tokentype_embeddings."};
constexpr std::array<std::string_view, 2> kHeads{"decoder.final_layernorm.", "output_layer."};
/// The parameters of a module itself; that of shared experts comes before their layers.
constexpr std::array<std::string_view, 5> kParameters{"layer_norm_weight", "layer_norm_bias",
                                                      "weight", "bias", "gate_weight"};

template <std::size_t n>
std::size_t position(const std::array<std::string_view, n>& modules, std::string_view rest) {
  const auto found =
      std::ranges::find_if(modules, [&](std::string_view name) { return rest.starts_with(name); });
  return static_cast<std::size_t>(found - modules.begin());
}

}  // namespace

ModulePlace module_place(std::string_view key, std::int64_t layer) {
  constexpr std::string_view kLayers = "decoder.layers.";
  constexpr std::string_view kEmbedding = "embedding.";
  ModulePlace place;
  const std::size_t dot = key.rfind('.');
  const std::string_view last = key.substr(dot == std::string_view::npos ? 0 : dot + 1);
  place.name = key.substr(0, key.size() - last.size());
  place.parameter =
      static_cast<std::size_t>(std::ranges::find(kParameters, last) - kParameters.begin());
  place.known = place.parameter < kParameters.size();
  if (key.starts_with(kEmbedding)) {
    place.layer = ModulePlace::kBeforeLayers;
    place.module = position(kEmbeddings, key.substr(kEmbedding.size()));
    place.known = place.known && place.module < kEmbeddings.size();
  } else if (!key.starts_with(kLayers)) {
    place.layer = ModulePlace::kAfterLayers;
    place.module = position(kHeads, key);
    place.known = place.known && place.module < kHeads.size();
  } else {
    std::string_view rest = key.substr(kLayers.size() - std::string_view("layers.").size());
    if (const auto number = take_index(rest, "layers.")) {
      place.layer = *number;
    } else {
      place.layer = layer;
      place.stacked = true;
      rest = key.substr(kLayers.size());
    }
    place.module = position(kOrderedModules, rest);
    place.known = place.known && place.module < kOrderedModules.size();
  }
  return place;
}

std::optional<std::int64_t> take_index(std::string_view& key, std::string_view word) {
  if (!key.starts_with(word)) return std::nullopt;
  const std::string_view digits = key.substr(word.size());
  const std::size_t end = std::min(digits.find('.'), digits.size());
  const auto number = parse_u64(digits.substr(0, end));
  if (!number || *number > INT32_MAX) return std::nullopt;
  key = digits.substr(std::min(end + 1, digits.size()));
  return static_cast<std::int64_t>(*number);
}

}  // namespace dckpt
