#include "dist_checkpointing/rewrite/megatron_fsdp_keys.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::string_view kLayers = ".layers.";
constexpr std::string_view kExperts = ".experts.experts.";      // of torch_dist
constexpr std::string_view kLocal = ".experts.local_experts.";  // of SequentialMLP
constexpr std::string_view kGrouped = ".experts.";              // of TEGroupedMLP
constexpr std::string_view kModule = "module.";
constexpr std::string_view kDigits = "0123456789";

bool is_prediction(std::string_view key) {
  return key.starts_with("mtp.") || key.find(".mtp.") != key.npos;
}

/// Where the layers' number is or would be; npos if the key is not one of a layer.
std::size_t behind_layers(std::string_view key) {
  const std::size_t at = key.find(kLayers);
  return at == key.npos || is_prediction(key) ? key.npos : at + kLayers.size();
}

std::optional<std::int64_t> number(std::string_view text) {
  const auto parsed = parse_u64(text);
  if (!parsed || *parsed > INT32_MAX) return std::nullopt;
  return static_cast<std::int64_t>(*parsed);
}

/// Takes "N." out of the key at a position.
std::optional<std::int64_t> take_number(std::string& key, std::size_t at) {
  const std::size_t dot = key.find('.', at);
  if (dot == key.npos) return std::nullopt;
  const auto taken = number(std::string_view(key).substr(at, dot - at));
  if (taken) key.erase(at, dot + 1 - at);
  return taken;
}

/// "weight", "bias", and with a number behind.
bool is_weight_or_bias(std::string_view name) {
  const std::size_t end = name.find_last_not_of(kDigits);
  const std::string_view word = name.substr(0, end == name.npos ? 0 : end + 1);
  return word == "weight" || word == "bias";
}

/// "….experts.linear_fc1.weight3" → "….experts.experts.linear_fc1.weight".
std::optional<std::int64_t> take_grouped_expert(std::string& key) {
  const std::size_t last = key.rfind('.');
  const std::size_t at = key.rfind(kGrouped, last);
  if (last == key.npos || at == key.npos) return std::nullopt;
  const std::string_view module =
      std::string_view(key).substr(at + kGrouped.size(), last - at - kGrouped.size());
  const std::size_t digits = key.find_last_not_of(kDigits) + 1;
  if (!module.starts_with("linear_fc") ||
      !is_weight_or_bias(std::string_view(key).substr(last + 1)))
    return std::nullopt;
  const auto taken = number(std::string_view(key).substr(digits));
  if (!taken) return std::nullopt;
  key.erase(digits);
  key.replace(at, kGrouped.size(), kExperts);
  return taken;
}

}  // namespace

std::string fsdp_key(const FsdpPart& part, bool grouped) {
  std::string key = part.key;
  if (part.layer) key.insert(behind_layers(key), str_format("{}.", *part.layer));
  if (part.expert) {
    key.replace(key.find(kExperts), kExperts.size(),
                grouped ? std::string(kGrouped) : str_format("{}{}.", kLocal, *part.expert));
    if (grouped) key += std::to_string(*part.expert);
  }
  if (part.half != 0) key += {'_', part.half};
  return key;
}

FsdpPart parse_fsdp_key(std::string_view key) {
  FsdpPart part{.key = std::string(key)};
  if ((key.ends_with("_w") || key.ends_with("_v")) && is_gated_key(key.substr(0, key.size() - 2))) {
    part.half = key.back();
    part.key.resize(key.size() - 2);
  }
  const bool joined = has_expert_axis(part.key);  // as Megatron-Core has it, without numbers
  if (const std::size_t at = part.key.find(kLocal); !joined && at != part.key.npos) {
    part.expert = take_number(part.key, at + kLocal.size());
    if (part.expert) part.key.replace(at, kLocal.size(), kExperts);
  } else if (!joined) {
    part.expert = take_grouped_expert(part.key);
  }
  if (const std::size_t at = behind_layers(part.key); at != key.npos)
    part.layer = take_number(part.key, at);
  return part;
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
  return key.find(kExperts) != key.npos;
}

namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kNorms{
    {{".input_layernorm.", ".self_attention.linear_qkv.layer_norm_"},
     {".pre_mlp_layernorm.", ".mlp.linear_fc1.layer_norm_"}}};

std::string replaced(const std::string& key, std::string_view from, std::string_view to) {
  const std::size_t at = key.rfind(from);
  std::string name = key;
  if (at != key.npos && behind_layers(key) != key.npos) name.replace(at, from.size(), to);
  return name;
}

}  // namespace

std::string norm_in_torch_dist(const std::string& key) {
  std::string name = key;
  for (const auto& [local, fused] : kNorms) name = replaced(name, local, fused);
  return name;
}

std::string norm_of_local_layer(const std::string& key) {
  std::string name = key;
  for (const auto& [local, fused] : kNorms) name = replaced(name, fused, local);
  return name;
}

std::string_view without_wrappers(std::string_view key) {
  while (key.starts_with(kModule)) key.remove_prefix(kModule.size());
  return key;
}

bool is_extra_state(std::string_view key) {
  return key.find("._extra_state") != key.npos;
}

}  // namespace dckpt
