#include "strategies/legacy_torch/model_keys.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::int64_t kLargestNumber = 1'000'000;  // of layers and experts

constexpr std::string_view kLayers = "decoder.layers.";

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

constexpr std::array<std::string_view, 10> kRows{
    ".linear_qkv.weight",        ".linear_qkv.bias",       ".linear_fc1.weight",
    ".linear_fc1.bias",          "word_embeddings.weight", "output_layer.weight",
    "output_layer.bias",         ".linear_q_proj.weight",  ".linear_q_up_proj.weight",
    ".linear_kv_up_proj.weight",
};
constexpr std::array<std::string_view, 2> kColumns{".linear_proj.weight", ".linear_fc2.weight"};
constexpr std::array<std::string_view, 9> kReplicated{
    ".linear_proj.bias",
    ".linear_fc2.bias",
    "position_embeddings.weight",
    ".router.weight",
    ".router.bias",
    ".router.expert_bias",
    ".gate_weight",
    ".linear_q_down_proj.weight",
    ".linear_kv_down_proj.weight",
};

bool is_norm(std::string_view name) {
  return name.find("layernorm.") != std::string_view::npos ||
         name.find("layer_norm_") != std::string_view::npos ||
         name.find("_norm.") != std::string_view::npos;
}

}  // namespace

ModelKey parse_model_key(std::string_view path, bool local_norms) {
  ModelKey key{.name = std::string(path)};
  if (path.starts_with("language_model.")) {
    for (const Pair& names : kOldModules) replace(key.name, names);
  }
  if (key.name.starts_with(kLayers)) key.layer = take_number(key.name, kLayers);
  constexpr std::string_view kLocalExperts = ".experts.local_experts.";
  key.expert = take_number(key.name, kLocalExperts);
  if (key.expert) {
    replace(key.name, {kLocalExperts, ".experts.experts."});
  } else if (key.name.find(".mlp.experts.linear_fc") != std::string::npos) {
    for (const std::string_view tensor : {".weight", ".bias"}) {  // "….linear_fc1.weight3"
      if (!key.expert) key.expert = take_number(key.name, tensor);
    }
    if (key.expert) replace(key.name, {".mlp.experts.", ".mlp.experts.experts."});
  }
  if (local_norms) {
    for (const Pair& names : kLocalNorms) replace(key.name, names);
  }
  return key;
}

std::optional<TensorParallel> tensor_parallel(std::string_view name) {
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  if (std::ranges::any_of(kRows, ends)) return TensorParallel::kRows;
  if (std::ranges::any_of(kColumns, ends)) return TensorParallel::kColumns;
  if (is_norm(name) || std::ranges::any_of(kReplicated, ends)) return TensorParallel::kReplicated;
  return std::nullopt;
}

}  // namespace dckpt
