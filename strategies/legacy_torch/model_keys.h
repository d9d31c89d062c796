#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace dckpt {

inline constexpr std::string_view kLayersPrefix = "decoder.layers.";
/// Of keys of values that belong to modules; Transformer Engine's keep scales of float8 there.
inline constexpr std::string_view kExtraStateSuffix = "._extra_state";
/// Ranks' files have it, distributed checkpoints do not.
inline constexpr std::string_view kOutputExtraState = "output_layer._extra_state";

/// A parameter of a model as a rank's file names it, under the key that Megatron gives it in
/// distributed checkpoints, without the numbers of its layer and its expert.
struct ModelKey {
  std::string name;                      ///< "decoder.layers.mlp.experts.experts.linear_fc1.weight"
  std::optional<std::int64_t> layer{};   ///< of the pipeline stage
  std::optional<std::int64_t> expert{};  ///< of the expert-parallel rank
};

/// "model.K" or "model1.K" → 1 and K: the chunk of a virtual pipeline, and the path inside it.
/// Empty for what is not in a model.
std::optional<std::pair<std::int64_t, std::string_view>> split_model_path(std::string_view path);

/// `path`: inside a rank's model: "decoder.layers.0.self_attention.linear_qkv.weight", or as
/// Megatron-LM called it before Megatron-Core:
/// "language_model.encoder.layers.0.self_attention.query_key_value.weight". Norms in front of a
/// linear layer that are modules of their own have the names of fused ones, if `local_norms`.
ModelKey parse_model_key(std::string_view path, bool local_norms);

/// How a rank's file names what models of one kind call differently.
struct ModuleNames {
  /// Norms in front of a linear layer are modules of their own (transformer_impl local), and not
  /// part of it (transformer_engine).
  bool local_norms = false;
  /// The experts of a rank are one module (grouped GEMM), and not one each.
  bool grouped_experts = false;
};

/// The inverse, for Megatron-Core's names: the path inside a rank's model.
std::string rank_path(const ModelKey& key, const ModuleNames& names);

}  // namespace dckpt
