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

/// The experts whose elements a tensor holds. Experts are numbered over all expert parallel ranks.
struct Experts {
  std::int64_t count = 1;  ///< experts of a layer
  /// If set, the tensor is of this expert alone, and the global one gets an axis of experts in
  /// front (after that of layers). Otherwise axis 0 of the tensor counts the experts of this rank.
  std::optional<std::int64_t> number{};
  bool in_key = false;  ///< the key names expert `number`: there is no axis of experts
};

struct ParallelTensorOptions {
  /// If set, all layers are one tensor with an axis of layers in front; otherwise the key names the
  /// layer.
  std::optional<StackedLayer> layer{};
  std::optional<Experts> experts{};
  /// The number of this copy among pipeline stages that have one, as of an embedding and an output
  /// layer with tied weights: 0 on the stage whose copy is saved.
  std::int64_t pipeline_copy = 0;
  bool allow_shape_mismatch = false;  ///< as in ShardedTensorOptions
};

/// Divides axis `axis` among the tensor parallel ranks (those of experts for experts; the axis of
/// experts is not counted).
[[nodiscard]] ShardedTensor tensor_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                            std::int64_t axis,
                                            const ParallelTensorOptions& options = {});
/// Cuts by rows of the weight, (outputs, inputs), like Megatron's ColumnParallelLinear, whose bias
/// is also column parallel. Rows of query, key and value that are interleaved by query group, as in
/// Megatron, are column parallel too.
ShardedTensor column_parallel(const ParallelRank& rank, std::string key, Tensor data,
                              const ParallelTensorOptions& options = {});
/// Cuts by columns of the weight. The bias of such a layer is replicated.
ShardedTensor row_parallel(const ParallelRank& rank, std::string key, Tensor data,
                           const ParallelTensorOptions& options = {});
/// Describes a tensor that is the same on all tensor parallel ranks: norms, biases of row parallel
/// layers, routers.
ShardedTensor replicated(const ParallelRank& rank, std::string key, Tensor data,
                         const ParallelTensorOptions& options = {});
/// Does the same as column_parallel(), with a number of rows that depends on the layout: a
/// checkpoint with another padding can be loaded (see `load.padding`).
ShardedTensor vocabulary_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                  ParallelTensorOptions options = {});
/// Returns the rows of a vocabulary with Megatron's padding, which the tensor parallel ranks
/// divide.
std::int64_t padded_vocabulary(const ParallelRank& rank, std::int64_t tokens,
                               std::int64_t divisible_by = 128);

}  // namespace dckpt
