#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dckpt {

inline constexpr std::string_view kRng = "rng_state";                        ///< of both formats
inline constexpr const char* kShardingType = "distrib_optim_sharding_type";  ///< of both

/// A tensor of Megatron-FSDP as a part of one of Megatron-Core. Keys are without "model.module."
/// and "optimizer.state.…".
struct FsdpPart {
  std::string key;                      ///< Megatron-Core's: layers and experts are axes
  std::optional<std::int64_t> layer{};  ///< empty: the key has its number, or there is none
  std::optional<std::int64_t> expert{};
  char half = 0;  ///< 'w' or 'v' of a gated matrix; 0: all of it
};

/// Its key. `grouped`: the experts are one module (TEGroupedMLP), whose weights have numbers, not
/// modules with numbers (SequentialMLP).
std::string fsdp_key(const FsdpPart& part, bool grouped);
/// The inverse. Layers of multi-token prediction keep their numbers in the key, as in torch_dist.
FsdpPart parse_fsdp_key(std::string_view key);

/// Whether a key is that of linear_fc1's weight or bias, which Megatron-FSDP stores in halves if
/// the model is gated. Of either format.
bool is_gated_key(std::string_view key);
/// "decoder.layers.mlp…": the first axis is the layer.
bool has_layer_axis(std::string_view key);
/// "….experts.experts.linear_fc1…": the next one is the expert.
bool has_expert_axis(std::string_view key);

/// The norms in front of attention and MLP, as torch_dist calls them, from the names of the modules
/// of Megatron's local layers, and back. Other keys stay.
std::string norm_in_torch_dist(const std::string& key);
std::string norm_of_local_layer(const std::string& key);

bool is_extra_state(std::string_view key);

/// Without all of the "module." in front.
std::string_view without_wrappers(std::string_view key);

}  // namespace dckpt
