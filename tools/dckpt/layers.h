#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "dist_checkpointing/inspect/inspect.h"

namespace dckpt::tool {

/// Larger numbers in keys are not those of layers.
inline constexpr std::uint64_t kMostLayers = 100'000;

/// The layer that a tensor belongs to, by its key: "decoder" and 3 of "decoder.layers.3.mlp.weight"
/// and of its optimizer state, "transformer" and 3 of "transformer.h.3.attn.weight".
struct LayerName {
  std::string stack;
  std::uint64_t number = 0;
};
std::optional<LayerName> layer_of(std::string_view key);

/// Checkpoints with more stacks of layers than this are not drawn by layer.
inline constexpr std::size_t kMostStacks = 16;

/// Bytes of tensors by layer.
struct LayerSizes {
  struct Stack {
    std::map<std::uint64_t, std::uint64_t> own{};  ///< in tensors of one layer
    std::uint64_t each = 0;  ///< of every layer below `layers`, in tensors that hold all
  };
  std::map<std::string, Stack> stacks{};
  std::uint64_t layers = 0;   ///< that the run had, 0 if that is not known
  std::uint64_t outside = 0;  ///< in no layer

  std::map<std::uint64_t, std::uint64_t> by_number(const Stack& stack) const;
};

/// By layer_of(). Tensors that hold all layers along their first axis, as Megatron stores equal
/// ones ("decoder.layers.mlp.weight"), count with equal parts for each.
LayerSizes layer_sizes(const CheckpointSummary& summary);

}  // namespace dckpt::tool
