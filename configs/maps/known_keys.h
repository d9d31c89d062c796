#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// The tensors that modules of Megatron-Core's models have, under the names of torch_dist: those of
// GPTModel and MambaModel with Transformer Engine's and local layers, and a few that
// Megatron-Bridge adds. Models have many more modules (vision towers, modules of one's own), so an
// unknown key is a reason to warn, not to refuse.

namespace dckpt {

/// A module, and its tensors.
struct KnownModule {
  /// The path, in which {l} counts layers, {m} layers for multi-token prediction and {e} experts.
  /// A path that starts with a dot is relative to a layer: ".self_attention.linear_qkv".
  std::string_view path;
  std::string_view tensors;  ///< names with spaces between them: "weight bias"
};
std::span<const KnownModule> known_modules() noexcept;

/// Returns the keys of all tensors of the known modules.
const std::vector<std::string>& known_keys();

/// A key that looks like one of Megatron-Core's and is not.
struct UnknownKey {
  std::optional<std::string> nearest;  ///< the known key that it may be a misspelling of
};

/// Examines a key in which numbers may be written as {l}. Returns no value for known keys and for
/// those of modules beside the model, whose first part is neither the name of one of the model's
/// modules nor nearly so. A prefix `language_model.` does not matter.
std::optional<UnknownKey> find_unknown(std::string_view key);

}  // namespace dckpt
