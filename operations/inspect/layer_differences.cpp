#include "operations/inspect/layer_differences.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "operations/inspect/layer_names.h"

namespace dckpt {

double differing_share(const Difference& difference) {
  if (!difference.elements || difference.elements->elements == 0) return 1;
  return static_cast<double>(difference.elements->count) /
         static_cast<double>(difference.elements->elements);
}

std::map<std::string, std::vector<double>> layer_differences(std::span<const std::string> keys,
                                                             const DiffReport& report) {
  std::map<std::string, std::vector<double>> stacks;
  const auto add = [&](const std::string& stack, std::uint64_t layer, double share) {
    std::vector<double>& shares = stacks[stack];
    if (shares.size() <= layer) shares.resize(layer + 1);
    shares[layer] = std::max(shares[layer], share);
  };
  for (const std::string& key : keys)
    if (const auto layer = layer_of(key)) add(layer->stack, layer->number, 0);
  bool any = false;
  for (const Difference& difference : report.differences) {
    if (difference.kind == Difference::Kind::kObject ||
        difference.kind == Difference::Kind::kCommon)
      continue;
    const auto layer = layer_of(difference.key);
    const auto stack = stack_of(difference.key);
    if (layer) {
      add(layer->stack, layer->number, differing_share(difference));
    } else if (stack && difference.elements) {
      const std::vector<std::uint64_t>& counts = difference.elements->by_layer;
      const double each = static_cast<double>(difference.elements->elements) /
                          static_cast<double>(std::max<std::size_t>(counts.size(), 1));
      for (std::size_t i = 0; i < counts.size(); ++i)
        add(*stack, i, static_cast<double>(counts[i]) / each);
      any |= !counts.empty();
    }
    any |= layer.has_value();
  }
  if (!any) stacks.clear();
  return stacks;
}

}  // namespace dckpt
