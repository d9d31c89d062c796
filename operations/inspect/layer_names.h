#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dckpt {

/// The limit of layer numbers; larger numbers in keys do not count as layers.
inline constexpr std::uint64_t kMostLayers = 100'000;

/// The layer that a tensor belongs to according to its key: "decoder" and 3 for
/// "decoder.layers.3.mlp.weight" and its optimizer state, "transformer" and 3 for
/// "transformer.h.3.attn.weight".
struct LayerName {
  std::string stack;
  std::uint64_t number = 0;
};
std::optional<LayerName> layer_of(std::string_view key);

/// Returns the stack of a key that names layers without a number, as of tensors that hold all
/// layers along their first axis: "decoder" for "decoder.layers.mlp.weight".
std::optional<std::string> stack_of(std::string_view key);

}  // namespace dckpt
