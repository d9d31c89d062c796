#include "migration/maps/numbers/quantization_config.h"

#include <set>
#include <string>

namespace dckpt {
namespace {

std::string word(const Value& in, const char* name) {
  const Value* const found = in.find(name);
  return found != nullptr && found->is_str() ? found->as_str() : std::string();
}

std::optional<std::int64_t> number(const Value& in, const char* name) {
  const Value* const found = in.find(name);
  return found != nullptr && found->is_int() ? std::optional(found->as_int()) : std::nullopt;
}

std::optional<ScaledPart> part_of(const std::string& strategy) {
  if (strategy == "channel") return ScaledPart::kRow;
  if (strategy == "tensor") return ScaledPart::kMatrix;
  if (strategy == "block") return ScaledPart::kBlock;
  return std::nullopt;
}

}  // namespace

QuantizationConfig quantization_config(const Value& config) {
  const Value* const quantization = config.find("quantization_config");
  if (quantization == nullptr || !quantization->is_dict()) return {};
  const std::string method = word(*quantization, "quant_method");
  if (method == "fbgemm_fp8") return {.part = ScaledPart::kRow};
  if (method == "fp8") {
    const Value* const block = quantization->find("weight_block_size");
    if (block == nullptr) return {};
    return {.part = block->is_none() ? ScaledPart::kMatrix : ScaledPart::kBlock};
  }
  const Value* const groups = quantization->find("config_groups");
  if (groups == nullptr || !groups->is_dict()) return {};
  QuantizationConfig found;
  std::set<std::string> strategies;
  bool all_have_groups = true;
  for (const auto& [name, group] : groups->as_dict()) {
    const Value* const weights = group.find("weights");
    if (weights == nullptr || !weights->is_dict()) continue;
    strategies.insert(word(*weights, "strategy"));
    if (word(*weights, "type") == "float") continue;
    const std::int64_t size = number(*weights, "group_size").value_or(0);
    all_have_groups = all_have_groups && size > 0;
    found.group_sizes.insert(size);
    if (const auto bits = number(*weights, "num_bits")) found.bits.insert(*bits);
  }
  if (!all_have_groups) found.group_sizes.clear();
  if (strategies.size() == 1) found.part = part_of(*strategies.begin());
  return found;
}

}  // namespace dckpt
