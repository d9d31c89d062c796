#include "tools/dckpt/commands/layers.h"

namespace dckpt::tool {

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
    const std::optional<std::string> stack = stack_of(tensor.key);
    if (const std::optional<LayerName> layer = layer_of(tensor.key)) {
      sizes.stacks[layer->stack].own[layer->number] += tensor.bytes;
    } else if (stack && sizes.layers > 0 && !tensor.shape.empty() &&
               tensor.shape[0] == static_cast<std::int64_t>(sizes.layers)) {
      sizes.stacks[*stack].each += tensor.bytes / sizes.layers;
    } else {
      sizes.outside += tensor.bytes;
    }
  }
  return sizes;
}

}  // namespace dckpt::tool
