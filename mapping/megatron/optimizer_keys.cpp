#include "mapping/megatron/optimizer_keys.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_set>

#include "mapping/base/format.h"
#include "mapping/megatron/module_order.h"

namespace dckpt {
namespace {

/// Names of state tensors, of the optimizers of torch, Apex and Megatron.
constexpr std::array<std::string_view, 9> kStates = {
    "param",   "fp32_param",      "master_param", "exp_avg", "exp_avg_sq",
    "exp_inf", "momentum_buffer", "sum",          "step"};

bool is_known_state(std::string_view name) {
  return std::ranges::find(kStates, name) != kStates.end();
}

}  // namespace

bool is_optimizer_key(std::string_view key) {
  if (key.starts_with("mp_rank_")) key.remove_prefix(std::min(key.find('/'), key.size() - 1) + 1);
  take_chain(key);
  return key.starts_with("optimizer.") || key.starts_with("optim.") ||
         key.starts_with("distrib_optim.");
}

bool holds_optimizer(const Metadata& metadata) {
  const auto is_optimizers = [](const auto& entry) { return is_optimizer_key(entry.key); };
  return std::ranges::any_of(metadata.tensors, is_optimizers) ||
         std::ranges::any_of(metadata.objects, is_optimizers);
}

OptimizerStateKey parse_optimizer_state_key(std::string_view key) {
  if (!is_optimizer_key(key)) return {};
  const std::size_t state = key.find(kOptimizerState);
  if (state == std::string_view::npos) return {};
  key.remove_prefix(state + kOptimizerState.size());
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos) return {};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

std::string optimizer_state_key(std::string_view name, std::string_view model_key) {
  return str_format("{}{}.{}", kOptimizerState, name, model_key);
}

std::optional<std::int64_t> take_chain(std::string_view& key) {
  return take_index(key, "chained_");
}

std::vector<std::string> optimizer_states(const Metadata& metadata) {
  std::unordered_set<std::string_view> models;
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    if (!is_optimizer_key(tensor.key)) models.insert(tensor.key);
  std::set<std::string_view> names;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    if (!is_optimizer_key(tensor.key)) continue;
    const OptimizerStateKey parts = parse_optimizer_state_key(tensor.key);
    const std::string_view key = tensor.key;
    const std::string_view last = key.substr(key.rfind('.') + 1);
    if (models.contains(parts.model_key) || is_known_state(parts.name))
      names.insert(parts.name);
    else if (is_known_state(last))
      names.insert(last);
  }
  return {names.begin(), names.end()};
}

std::string optimizer_sharding(const Value& common) {
  const auto text = [](const Value* dict, const char* name) -> std::string {
    const Value* const value = dict != nullptr && dict->is_dict() ? dict->find(name) : nullptr;
    return value != nullptr && value->is_str() ? value->as_str() : "";
  };
  if (!common.is_dict()) return "";
  const Value* const optimizer = common.find("optimizer");
  std::string found = text(optimizer, "param_state_sharding_type");
  if (found.empty() && optimizer != nullptr && optimizer->is_dict()) {  // a chain of optimizers
    for (const auto& [number, member] : optimizer->as_dict()) {
      if (found.empty()) found = text(&member, "param_state_sharding_type");
    }
  }
  return found.empty() ? text(common.find("content_metadata"), "distrib_optim_sharding_type")
                       : found;
}

}  // namespace dckpt
