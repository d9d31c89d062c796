#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dckpt {

/// A parameter of a model as a rank's file names it, under the key that Megatron gives it in
/// distributed checkpoints, without the numbers of its layer and its expert.
struct ModelKey {
  std::string name;                      ///< "decoder.layers.mlp.experts.experts.linear_fc1.weight"
  std::optional<std::int64_t> layer{};   ///< of the pipeline stage
  std::optional<std::int64_t> expert{};  ///< of the expert-parallel rank
};

/// `path`: inside a rank's model: "decoder.layers.0.self_attention.linear_qkv.weight", or as
/// Megatron-LM called it before Megatron-Core:
/// "language_model.encoder.layers.0.self_attention.query_key_value.weight". Norms in front of a
/// linear layer that are modules of their own have the names of fused ones, if `local_norms`.
ModelKey parse_model_key(std::string_view path, bool local_norms);

/// Which axis of a parameter the tensor-parallel ranks share.
enum class TensorParallel : std::uint8_t { kReplicated, kRows, kColumns };
/// `name`: of a ModelKey. Empty if it is unknown.
std::optional<TensorParallel> tensor_parallel(std::string_view name);

}  // namespace dckpt
