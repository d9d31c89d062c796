#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "mapping/planning/metadata.h"

// How Megatron's formats spell the key of a model's parameter. torch_dist names what all layers and
// experts have in common, and makes axes of their numbers; the others give each a key of its own:
//
//                              torch_dist                      a rank's file, Megatron-FSDP
//   layer 3                    decoder.layers.mlp.…            decoder.layers.3.mlp.…
//   expert 5, a module each    ….mlp.experts.experts.X.weight  ….mlp.experts.local_experts.5.X.weight
//   expert 5, one module       the same                        ….mlp.experts.X.weight5
//   norm of a local layer      ….linear_qkv.layer_norm_weight  ….input_layernorm.weight
//   half of a gated matrix     ….linear_fc1.weight             ….linear_fc1.weight_w (Megatron-FSDP)

namespace dckpt {

inline constexpr std::string_view kLayersPrefix = "decoder.layers.";
/// Of keys of values that belong to modules; Transformer Engine's keep scales of float8 there.
inline constexpr std::string_view kExtraStateSuffix = "._extra_state";
/// Ranks' files have it, distributed checkpoints do not.
inline constexpr std::string_view kOutputExtraState = "output_layer._extra_state";

/// The key of a parameter, taken apart.
struct ModelKey {
  std::string name;                      ///< torch_dist's, without the numbers
  std::optional<std::int64_t> layer{};   ///< of the pipeline stage in a rank's file, else of all
  std::optional<std::int64_t> expert{};  ///< of the expert-parallel rank, or of all
  char half = 0;                         ///< 'w' or 'v' of a gated matrix; 0: all of it
};

/// How a format names what models of one kind call differently.
struct ModuleNames {
  /// Norms in front of a linear layer are modules of their own (transformer_impl local), and not
  /// part of it (transformer_engine).
  bool local_norms = false;
  /// The experts of a rank are one module (grouped GEMM), and not one each.
  bool grouped_experts = false;
};

/// "model.K" or "model1.K" → 1 and K: the chunk of a virtual pipeline, and the path inside it.
/// Empty for what is not in a model.
std::optional<std::pair<std::int64_t, std::string_view>> split_model_path(std::string_view path);

/// `path`: inside a rank's model: "decoder.layers.0.self_attention.linear_qkv.weight", or as
/// Megatron-LM called it before Megatron-Core:
/// "language_model.encoder.layers.0.self_attention.query_key_value.weight". Norms in front of a
/// linear layer that are modules of their own have the names of fused ones, if `local_norms`.
ModelKey parse_rank_path(std::string_view path, bool local_norms);
/// The inverse, for Megatron-Core's names: the path inside a rank's model.
std::string rank_path(const ModelKey& key, const ModuleNames& names);

/// A key of Megatron-FSDP, without "model.module." and "optimizer.state.…". Layers of multi-token
/// prediction keep their numbers in the name, as in torch_dist. Norms keep theirs.
ModelKey parse_fsdp_key(std::string_view key);
/// The inverse; norms keep their names.
std::string fsdp_key(const ModelKey& key, bool grouped_experts);

/// A norm in front of a linear layer, as parts of keys.
struct NormSpelling {
  std::string_view local;  ///< a module of its own
  std::string_view fused;  ///< a part of the linear layer, as in Transformer Engine's modules
};
/// Those in front of attention and MLP; with `latent` also those inside multi-latent attention.
std::span<const NormSpelling> norm_spellings(bool latent = false);
/// A key of a layer with the norms in front of attention and MLP as torch_dist names them, from the
/// names of Megatron's local layers, and back. Other keys stay.
std::string with_fused_norms(std::string key);
std::string with_local_norms(std::string key);

/// Whether a key is that of linear_fc1's weight or bias, which Megatron-FSDP stores in halves if
/// the model is gated. In any spelling.
bool is_gated_key(std::string_view key);
/// torch_dist's "decoder.layers.mlp…": the first axis is the layer.
bool has_layer_axis(std::string_view key);
/// torch_dist's "….experts.experts.linear_fc1…": the next one is the expert.
bool has_expert_axis(std::string_view key);
bool is_extra_state(std::string_view key);

/// Without all of the "module." in front.
std::string_view without_wrappers(std::string_view key);

/// Tells a key of Megatron-Core, which no model of Hugging Face has.
bool is_megatron_key(std::string_view key);
/// A key as Hugging Face or Megatron-FSDP calls it, not Megatron-Core; null if there is none.
const std::string* find_foreign_key(const Metadata& metadata);

}  // namespace dckpt
