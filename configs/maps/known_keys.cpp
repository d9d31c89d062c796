#include "configs/maps/known_keys.h"

#include <algorithm>
#include <array>
#include <set>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::string_view kWeight = "weight";
constexpr std::string_view kBoth = "weight bias";
constexpr std::string_view kAfterNorm = "weight bias layer_norm_weight layer_norm_bias";

constexpr std::string_view kCompressor = "linear_wkv.weight linear_wgate.weight ape norm.weight";
constexpr std::string_view kConnection = "mapping_proj.weight bias alpha_pre alpha_post alpha_res";
constexpr std::string_view kStreams = "hc_head_fn hc_head_base hc_head_scale";

constexpr auto kModules = std::to_array<KnownModule>({
    {"embedding.word_embeddings", kWeight},
    {"embedding.position_embeddings", kWeight},
    {"embedding.tokentype_embeddings", kWeight},
    {"decoder.final_layernorm", kBoth},
    {"decoder.final_norm", kBoth},
    {"output_layer", kBoth},
    {"decoder", kStreams},
    {".input_layernorm", kBoth},
    {".self_attention.linear_qkv", kAfterNorm},
    {".self_attention.q_layernorm", kBoth},
    {".self_attention.k_layernorm", kBoth},
    {".self_attention.core_attention", "softmax_offset attn_sink"},
    {".self_attention.linear_proj", kBoth},
    {".self_attention.linear_proj.post_layernorm", kBoth},
    {".post_self_attn_layernorm", kBoth},
    {".self_attention.linear_q_proj", kAfterNorm},
    {".self_attention.linear_q_down_proj", kBoth},
    {".self_attention.linear_q_up_proj", kAfterNorm},
    {".self_attention.linear_kv_down_proj", kBoth},
    {".self_attention.kv_layernorm", kBoth},
    {".self_attention.linear_kv_up_proj", kAfterNorm},
    {".self_attention.linear_kv_proj", kBoth},
    {".self_attention.core_attention.compressor", kCompressor},
    {".self_attention.core_attention.indexer.compressor", kCompressor},
    {".self_attention.core_attention.indexer.linear_wq_b", kWeight},
    {".self_attention.core_attention.indexer.linear_wk", kWeight},
    {".self_attention.core_attention.indexer.k_norm", kBoth},
    {".self_attention.core_attention.indexer.linear_weights_proj", kWeight},
    {".self_attention.in_proj",
     "weight.query weight.key weight.value weight.z weight.beta weight.alpha layer_norm_weight "
     "layer_norm_bias"},
    {".self_attention.conv1d",
     "weight.query weight.key weight.value bias.query bias.key bias.value"},
    {".self_attention",
     "A_log dt_bias weight layer_norm_weight layer_norm_bias linear_o_group_proj"},
    {".self_attention.out_norm", kBoth},
    {".self_attention.out_proj", kBoth},
    {".pre_cross_attn_layernorm", kBoth},
    {".cross_attention.linear_q", kBoth},
    {".cross_attention.linear_kv", kBoth},
    {".cross_attention.linear_proj", kBoth},
    {".norm", kBoth},
    {".mixer.in_proj",
     "weight.z weight.x weight.B weight.C weight.dt layer_norm_weight layer_norm_bias"},
    {".mixer.conv1d", "weight.x weight.B weight.C bias.x bias.B bias.C"},
    {".mixer", "A_log D dt_bias"},
    {".mixer.norm", kWeight},
    {".mixer.out_proj", kBoth},
    {".pre_mlp_layernorm", kBoth},
    {".mlp.linear_fc1", kAfterNorm},
    {".mlp.linear_fc2", kBoth},
    {".mlp.linear_fc2.post_layernorm", kBoth},
    {".post_mlp_layernorm", kBoth},
    {".mlp", "weight layer_norm_weight layer_norm_bias"},
    {".mlp.router", "weight bias expert_bias tid2eid"},
    {".mlp.experts.experts.{e}.linear_fc1", kBoth},
    {".mlp.experts.experts.{e}.linear_fc2", kBoth},
    {".mlp.shared_experts.linear_fc1", kBoth},
    {".mlp.shared_experts.linear_fc2", kBoth},
    {".mlp.shared_experts", "gate_weight"},
    {".mlp.fc1_latent_proj", kBoth},
    {".mlp.fc2_latent_proj", kBoth},
    {".self_attention_hyper_connection", kConnection},
    {".mlp_hyper_connection", kConnection},
    {"mtp.layers.{m}", kStreams},
    {"mtp.layers.{m}.enorm", kBoth},
    {"mtp.layers.{m}.hnorm", kBoth},
    {"mtp.layers.{m}.eh_proj", kBoth},
    {"mtp.layers.{m}.e_proj", kBoth},
    {"mtp.layers.{m}.h_proj", kBoth},
    {"mtp.layers.{m}.final_layernorm", kBoth},
});

/// The paths of layers. Newer releases have a second name for the layer of multi-token prediction.
constexpr std::array<std::string_view, 4> kLayerPaths{"decoder.layers.{l}", "encoder.layers.{l}",
                                                      "mtp.layers.{m}.transformer_layer",
                                                      "mtp.layers.{m}.mtp_model_layer"};

/// The tensors of an adapter of a linear layer, in Megatron-Bridge and NeMo.
constexpr std::array<std::string_view, 2> kAdapters{"adapter.linear_in.weight",
                                                    "adapter.linear_out.weight"};

bool is_linear(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('.') + 1);
  return name.starts_with("linear_") || name.ends_with("_proj");
}

std::string join(std::string_view path, std::string_view name) {
  return std::string(path) + "." + std::string(name);
}

/// Replaces numbers of layers by their names: "mtp.layers.0" becomes "mtp.layers.{m}".
std::string with_names(std::string_view key) {
  std::string text;
  for (const std::string& part : split(key, '.')) {
    const bool is_number = text.ends_with("layers.") && parse_u64(part);
    text += !is_number ? part : text.ends_with("mtp.layers.") ? "{m}" : "{l}";
    text += '.';
  }
  text.pop_back();
  return text;
}

/// Replaces the names of numbers, which do not matter: "layers.{l}" becomes "layers.{}".
std::string without_names(std::string_view key) {
  std::string text;
  bool inside = false;
  for (const char letter : key) {
    if (letter == '}') inside = false;
    if (!inside) text += letter;
    if (letter == '{') inside = true;
  }
  return text;
}

std::vector<std::string> make_keys() {
  std::vector<std::string> keys;
  const auto add = [&](std::string_view path, const KnownModule& module) {
    for (const std::string& tensor : split(module.tensors, ' ')) keys.push_back(join(path, tensor));
    if (!is_linear(path)) return;
    for (const std::string_view tensor : kAdapters) keys.push_back(join(path, tensor));
  };
  for (const KnownModule& module : kModules) {
    if (module.path.front() != '.') {
      add(module.path, module);
      continue;
    }
    for (const std::string_view layer : kLayerPaths)
      add(std::string(layer) + std::string(module.path), module);
  }
  return keys;
}

/// The first parts of the keys of a model.
const std::vector<std::string>& roots() {
  static const std::vector<std::string> all = [] {
    std::set<std::string> names;
    for (const std::string& key : known_keys()) names.insert(key.substr(0, key.find('.')));
    return std::vector<std::string>(names.begin(), names.end());
  }();
  return all;
}

/// Returns the nearest known key. The path of a layer, which all of its keys share, does not count.
std::optional<std::string> nearest_key(std::string_view key) {
  std::string shared;
  for (const std::string_view layer : kLayerPaths) {
    if (key.starts_with(join(layer, ""))) shared = join(layer, "");
  }
  std::vector<std::string> rests;
  for (const std::string& known : known_keys()) {
    if (known.starts_with(shared)) rests.push_back(known.substr(shared.size()));
  }
  const auto rest = nearest(key.substr(shared.size()), rests);
  return rest ? std::optional(shared + *rest) : std::nullopt;
}

}  // namespace

std::span<const KnownModule> known_modules() noexcept {
  return kModules;
}

const std::vector<std::string>& known_keys() {
  static const std::vector<std::string> keys = make_keys();
  return keys;
}

std::optional<UnknownKey> find_unknown(std::string_view stored) {
  const std::string named = with_names(stored);
  std::string_view key = named;
  static const std::set<std::string> known = [] {
    std::set<std::string> keys;
    for (const std::string& one : known_keys()) keys.insert(without_names(one));
    return keys;
  }();
  constexpr std::string_view kText = "language_model.";
  if (key.starts_with(kText)) key.remove_prefix(kText.size());
  if (known.contains(without_names(key)) || !nearest(key.substr(0, key.find('.')), roots()))
    return std::nullopt;
  return UnknownKey{nearest_key(key)};
}

}  // namespace dckpt
