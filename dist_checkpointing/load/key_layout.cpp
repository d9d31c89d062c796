#include "dist_checkpointing/load/key_layout.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/megatron/model_keys.h"

namespace dckpt {
namespace {

constexpr std::string_view kLayers = "layers.";

/// A key with its naming scheme, and its name independent of the scheme.
struct Parsed {
  std::string subject;  ///< without the layer's number, with Transformer Engine's names of norms
  bool has_layer = false;
  const NormSpelling* norm = nullptr;
  bool is_local = false;
};

Parsed parse(std::string_view key) {
  Parsed parsed{std::string(key.substr(0, key.rfind("/shard_")))};
  std::string& text = parsed.subject;
  if (const std::size_t at = text.find(kLayers);
      at != std::string::npos && (at == 0 || text[at - 1] == '.')) {
    const std::size_t begin = at + kLayers.size();
    const std::size_t end = text.find_first_not_of("0123456789", begin);
    if (end != std::string::npos && end > begin && text[end] == '.') {
      text.erase(begin, end + 1 - begin);
      parsed.has_layer = true;
    }
  }
  for (const NormSpelling& norm : norm_spellings(true)) {
    if (const std::size_t at = text.find(norm.local); at != std::string::npos) {
      text.replace(at, norm.local.size(), norm.fused);
      parsed.norm = &norm;
      parsed.is_local = true;
    } else if (text.find(norm.fused) != std::string::npos) {
      parsed.norm = &norm;
    }
  }
  return parsed;
}

/// The missing keys that one naming scheme explains.
struct Explained {
  std::size_t keys = 0;
  std::string asked{};   ///< first requested key
  std::string stored{};  ///< its counterpart

  void add(const std::string& key, const std::string& counterpart) {
    if (keys++ == 0) asked = key, stored = counterpart;
  }
  std::string example() const {
    return str_format("{} ({} is {} there)", counted(keys, "key"), quote(asked), quote(stored));
  }
};

/// Returns a rule with a pattern like "self_attention\.linear_qkv\.layer_norm_(weight|bias)$".
std::string rule_for(const NormSpelling& norm, bool asked_is_local) {
  const auto escaped = [](std::string_view name) {
    std::string text;
    for (const char c : name.substr(1)) text += c == '.' ? std::string("\\.") : std::string(1, c);
    return text;
  };
  const std::string_view stored = asked_is_local ? norm.fused : norm.local;
  const std::string_view asked = asked_is_local ? norm.local : norm.fused;
  return str_format("{{from: '{}(weight|bias)$', to: '{}\\1'}}", escaped(stored), asked.substr(1));
}

}  // namespace

std::string explain_by_layout(const KeySet& asked, const KeySet& stored) {
  std::map<std::string, std::string> by_subject;
  for (const std::string& key : stored) by_subject.emplace(parse(key).subject, key);
  Explained per_layer;
  Explained stacked;
  std::map<std::string, Explained> spec;  // by the rename rule
  bool asks_local = false;
  for (const std::string& key : asked) {
    if (stored.contains(key)) continue;
    const Parsed mine = parse(key);
    const auto found = by_subject.find(mine.subject);
    if (found == by_subject.end()) continue;
    const Parsed theirs = parse(found->second);
    if (mine.has_layer && !theirs.has_layer) per_layer.add(key, found->second);
    if (!mine.has_layer && theirs.has_layer) stacked.add(key, found->second);
    if (mine.norm == nullptr || mine.is_local == theirs.is_local) continue;
    asks_local = mine.is_local;
    spec[rule_for(*mine.norm, mine.is_local)].add(key, found->second);
  }
  std::string text;
  if (per_layer.keys != 0) {
    text += str_format(
        "\nThe checkpoint stacks its layers in one tensor per name (Megatron's homogeneous "
        "layers), a key per layer is asked for: {}. Ask for layer i of n as a shard of the stacked "
        "key, with a prepended axis (prepend_axis_num = 1, offset i of n).",
        per_layer.example());
  }
  if (stacked.keys != 0) {
    text += str_format(
        "\nThe checkpoint has a key per layer (Megatron's non-homogeneous layers), stacked layers "
        "are asked for: {}. Ask for each layer under its own key, without the prepended axis.",
        stacked.example());
  }
  if (!spec.empty()) {
    text += str_format(
        "\nThe checkpoint names norms as Megatron's {} spec does, the request as its {} spec: {}. "
        "This in the policy gives them the names asked for:\n  load: {{rename: [",
        asks_local ? "Transformer Engine" : "local", asks_local ? "local" : "Transformer Engine",
        spec.begin()->second.example());
    std::string rules;
    for (const auto& [rule, explained] : spec) rules += (rules.empty() ? "" : ", ") + rule;
    text += rules + "]}";
  }
  return text;
}

}  // namespace dckpt
