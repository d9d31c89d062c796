#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mapping/planning/metadata.h"

// The spellings of a parameter's key in Megatron's formats. torch_dist has one key for all layers
// and experts, and makes axes of their numbers; the others give each layer and expert a key of its
// own:
//
//                              torch_dist                      a rank's file, Megatron-FSDP
//   layer 3                    decoder.layers.mlp.…            decoder.layers.3.mlp.…
//   expert 5, a module each    ….mlp.experts.experts.X.weight  ….mlp.experts.local_experts.5.X.weight
//   expert 5, one module       the same                        ….mlp.experts.X.weight5
//   norm of a local layer      ….linear_qkv.layer_norm_weight  ….input_layernorm.weight
//   half of a gated matrix     ….linear_fc1.weight             ….linear_fc1.weight_w (Megatron-FSDP)

namespace dckpt {

inline constexpr std::string_view kLayersPrefix = "decoder.layers.";
/// The suffix of keys of values that belong to modules; Transformer Engine keeps scales of float8
/// there.
inline constexpr std::string_view kExtraStateSuffix = "._extra_state";
/// A key that ranks' files have and distributed checkpoints do not.
inline constexpr std::string_view kOutputExtraState = "output_layer._extra_state";

/// The parts of a parameter's key.
struct ModelKey {
  std::string name;                      ///< torch_dist's name, without the numbers
  std::optional<std::int64_t> layer{};   ///< number in the pipeline stage in a rank's file, else in
                                         ///< the model
  std::optional<std::int64_t> expert{};  ///< number on the expert-parallel rank, or in the model
  char half = 0;                         ///< 'w' or 'v' of a gated matrix; 0: all of it
};

/// The names that a format has for modules that models of one kind call differently.
struct ModuleNames {
  /// Norms in front of a linear layer are modules of their own (transformer_impl local), not part
  /// of it (transformer_engine).
  bool local_norms = false;
  /// The experts of a rank are one module (grouped GEMM), not one each.
  bool grouped_experts = false;
};

/// Splits "model.K" or "model1.K" into the chunk of a virtual pipeline and the path K inside it.
/// Empty for paths outside a model.
std::optional<std::pair<std::int64_t, std::string_view>> split_model_path(std::string_view path);

/// Parses `path` inside a rank's model: "decoder.layers.0.self_attention.linear_qkv.weight", or its
/// name in Megatron-LM before Megatron-Core:
/// "language_model.encoder.layers.0.self_attention.query_key_value.weight". With `local_norms`,
/// norms in front of a linear layer that are modules of their own get the names of fused ones.
ModelKey parse_rank_path(std::string_view path, bool local_norms);
/// Returns the path inside a rank's model, with Megatron-Core's names; the inverse of
/// parse_rank_path().
std::string rank_path(const ModelKey& key, const ModuleNames& names);

/// Parses a key of Megatron-FSDP, without "model.module." and "optimizer.state.…". Layers of
/// multi-token prediction keep their numbers in the name, as in torch_dist. Norms keep their names.
ModelKey parse_fsdp_key(std::string_view key);
/// Returns the key in Megatron-FSDP; norms keep their names.
std::string fsdp_key(const ModelKey& key, bool grouped_experts);

/// A norm in front of a linear layer, as parts of keys.
struct NormSpelling {
  std::string_view local;  ///< a module of its own
  std::string_view fused;  ///< a part of the linear layer, as in Transformer Engine's modules
};
/// Returns the norms in front of attention and MLP; with `latent` also those inside multi-latent
/// attention.
std::span<const NormSpelling> norm_spellings(bool latent = false);
/// Replace the names of norms in front of attention and MLP in the key of a layer: those of
/// Megatron's local layers by those of torch_dist, and back. Other keys stay.
std::string with_fused_norms(std::string key);
std::string with_local_norms(std::string key);

/// Returns whether a key, in any spelling, is that of linear_fc1's weight or bias, which
/// Megatron-FSDP stores in halves if the model is gated.
bool is_gated_key(std::string_view key);
/// True for torch_dist's "decoder.layers.mlp…": the first axis is the layer.
bool has_layer_axis(std::string_view key);
/// True for torch_dist's "….experts.experts.linear_fc1…": the next axis is the expert.
bool has_expert_axis(std::string_view key);
bool is_extra_state(std::string_view key);

/// Removes every "module." in front.
std::string_view without_wrappers(std::string_view key);

/// Recognizes a key of Megatron-Core that no model of Hugging Face has.
bool is_megatron_key(std::string_view key);
/// Finds a key with a name of Hugging Face or Megatron-FSDP, not Megatron-Core; null if there is
/// none.
const std::string* find_foreign_key(const Metadata& metadata);

}  // namespace dckpt
