#include "tools/dckpt/layers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "mapping/base/text.h"

namespace dckpt::tool {
namespace {

constexpr std::array<std::string_view, 4> kStackNames = {"layers", "layer", "blocks", "h"};

/// The stack of layers in a key, named by the component before "layers", and the component after.
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

std::map<std::uint64_t, std::uint64_t> LayerSizes::by_number(const Stack& stack) const {
  std::map<std::uint64_t, std::uint64_t> sizes = stack.own;
  for (std::uint64_t layer = 0; stack.each > 0 && layer < layers; ++layer)
    sizes[layer] += stack.each;
  return sizes;
}

LayerSizes layer_sizes(const CheckpointSummary& summary) {
  LayerSizes sizes;
  for (const auto& [name, number] : summary.run.model) {
    if (name == "layers" && number > 1 && number < static_cast<std::int64_t>(kMostLayers))
      sizes.layers = static_cast<std::uint64_t>(number);
  }
  for (const TensorSummary& tensor : summary.tensors) {
    const std::optional<StackInKey> stacked = stack_in(tensor.key, false);
    if (const std::optional<LayerName> layer = layer_of(tensor.key)) {
      sizes.stacks[layer->stack].own[layer->number] += tensor.bytes;
    } else if (stacked && sizes.layers > 0 && !tensor.shape.empty() &&
               tensor.shape[0] == static_cast<std::int64_t>(sizes.layers)) {
      sizes.stacks[stacked->name].each += tensor.bytes / sizes.layers;
    } else {
      sizes.outside += tensor.bytes;
    }
  }
  return sizes;
}

}  // namespace dckpt::tool
