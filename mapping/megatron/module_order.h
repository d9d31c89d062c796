#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

namespace dckpt {

/// The place of a parameter in the order in which Megatron's models declare theirs: embeddings,
/// layers from the first to the last, then everything after them.
struct ModulePlace {
  static constexpr std::int64_t kBeforeLayers = -1;
  static constexpr std::int64_t kAfterLayers = INT64_MAX;

  std::int64_t layer = 0;
  bool stacked = false;       ///< the key has no number: the tensor's first axis counts layers
  std::size_t module = 0;     ///< position in the layer or the embedding
  std::string_view name;      ///< the key up to the parameter
  std::size_t parameter = 0;  ///< position in the module
  bool known = true;          ///< the order is Megatron's; otherwise it is alphabetical

  auto order() const { return std::tie(layer, module, name, parameter); }
};

/// Returns the place of the tensor `key` of a model, at `layer` if it has several. The result
/// refers to `key`.
ModulePlace module_place(std::string_view key, std::int64_t layer);

/// Takes off the front of the key `word`, then digits up to the next dot, and the dot (or the end).
std::optional<std::int64_t> take_index(std::string_view& key, std::string_view word);

}  // namespace dckpt
