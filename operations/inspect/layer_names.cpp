#include "operations/inspect/layer_names.h"

#include <algorithm>
#include <array>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::array<std::string_view, 4> kStackNames = {"layers", "layer", "blocks", "h"};

struct StackInKey {
  std::string name;
  std::string_view number{};  ///< the component after "layers"
};

std::optional<StackInKey> stack_in(std::string_view key, bool numbered) {
  std::string_view before;
  for (std::size_t start = 0; start < key.size();) {
    const std::size_t end = std::min(key.find('.', start), key.size());
    const std::string_view name = key.substr(start, end - start);
    if (std::ranges::find(kStackNames, name) != kStackNames.end() && end < key.size()) {
      const std::string_view rest = key.substr(end + 1);
      const std::string_view next = rest.substr(0, std::min(rest.find('.'), rest.size()));
      if (parse_u64(next).has_value() == numbered)
        return StackInKey{std::string(before.empty() ? name : before), next};
    }
    before = name;
    start = end + 1;
  }
  return std::nullopt;
}

}  // namespace

std::optional<LayerName> layer_of(std::string_view key) {
  const std::optional<StackInKey> stack = stack_in(key, true);
  if (!stack) return std::nullopt;
  const std::uint64_t number = parse_u64(stack->number).value_or(kMostLayers);
  if (number >= kMostLayers) return std::nullopt;
  return LayerName{stack->name, number};
}

std::optional<std::string> stack_of(std::string_view key) {
  const std::optional<StackInKey> stack = stack_in(key, false);
  return stack ? std::optional(stack->name) : std::nullopt;
}

}  // namespace dckpt
