#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "operations/inspect/inspect.h"
#include "operations/inspect/layer_names.h"

namespace dckpt::tool {

/// The maximum number of layer stacks for pictures by layer.
inline constexpr std::size_t kMostStacks = 16;

/// Bytes of tensors by layer.
struct LayerSizes {
  struct Stack {
    std::map<std::uint64_t, std::uint64_t> own{};  ///< tensors of a single layer
    std::uint64_t each = 0;  ///< each layer's share of tensors that hold all `layers`
  };
  std::map<std::string, Stack> stacks{};
  std::uint64_t layers = 0;   ///< number of layers of the run, 0 if unknown
  std::uint64_t outside = 0;  ///< bytes that belong to no layer

  std::map<std::uint64_t, std::uint64_t> by_number(const Stack& stack) const;
};

/// Sums the bytes of tensors by layer_of(). A tensor that holds all layers along its first axis, as
/// Megatron stores identical layers ("decoder.layers.mlp.weight"), counts in equal parts for each
/// layer.
LayerSizes layer_sizes(const CheckpointSummary& summary);

}  // namespace dckpt::tool
