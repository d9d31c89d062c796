#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "mapping/base/api.h"
#include "mapping/geometry/parallel_layout.h"
#include "mapping/state/sharded_tensor.h"

namespace DCKPT_API dckpt {

/// Descriptions of a rank's tensors in the usual parallel layouts, with the positions and replica
/// ids of Megatron-Core: (copy in another pipeline stage, tensor parallel copy, data parallel
/// copy). Each throws CheckpointError (invalid argument) with the sizes if these do not fit.

/// Layer `number` of `count` in the model, counted over all pipeline stages.
struct StackedLayer {
  std::int64_t number = 0;
  std::int64_t count = 1;
};

/// Whose experts a tensor holds. Experts are numbered over all expert parallel ranks.
struct Experts {
  std::int64_t count = 1;  ///< experts of a layer
  /// The tensor is of this expert alone, and the global one gets an axis of experts in front (after
  /// that of layers). Else axis 0 of the tensor counts the experts of this rank.
  std::optional<std::int64_t> number{};
  bool in_key = false;  ///< the key names expert `number`: no axis of experts
};

struct ParallelTensorOptions {
  /// All layers are one tensor with an axis of layers in front; without it, the key names the
  /// layer.
  std::optional<StackedLayer> layer{};
  std::optional<Experts> experts{};
  /// Counts the copies that other pipeline stages have, such as embedding and output layer with
  /// tied weights: 0 on the stage whose copy is saved.
  std::int64_t pipeline_copy = 0;
  bool allow_shape_mismatch = false;  ///< as in ShardedTensorOptions
};

/// Axis `axis` is cut over the tensor parallel ranks (those of experts for experts; the axis of
/// experts is not counted).
[[nodiscard]] ShardedTensor tensor_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                            std::int64_t axis,
                                            const ParallelTensorOptions& options = {});
/// Cut by rows of the weight, (outputs, inputs), as Megatron's ColumnParallelLinear is, whose bias
/// is also column parallel. Rows of query, key and value that are interleaved by query group, as
/// Megatron has them, are column parallel too.
ShardedTensor column_parallel(const ParallelRank& rank, std::string key, Tensor data,
                              const ParallelTensorOptions& options = {});
/// Cut by columns of the weight. The bias of such a layer is replicated.
ShardedTensor row_parallel(const ParallelRank& rank, std::string key, Tensor data,
                           const ParallelTensorOptions& options = {});
/// The same on all tensor parallel ranks: norms, biases of row parallel layers, routers.
ShardedTensor replicated(const ParallelRank& rank, std::string key, Tensor data,
                         const ParallelTensorOptions& options = {});
/// Column parallel, with a number of rows that depends on the layout: a checkpoint with another
/// padding can be loaded (see `load.padding`).
ShardedTensor vocabulary_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                  ParallelTensorOptions options = {});
/// The rows of a vocabulary with Megatron's padding, to be divided by the tensor parallel ranks.
std::int64_t padded_vocabulary(const ParallelRank& rank, std::int64_t tokens,
                               std::int64_t divisible_by = 128);

}  // namespace dckpt
