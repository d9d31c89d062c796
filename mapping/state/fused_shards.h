#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/state/parallel_shards.h"
#include "mapping/state/sharded_object.h"

namespace DCKPT_API dckpt {

/// Describes several column parallel matrices in one tensor, one after the other: `rows` of each on
/// this rank. In the global tensor, the rows of one matrix are together. The result is a factory
/// that shares the tensor's memory. Examples are {gate, up}, and {query, key, value} that are not
/// interleaved.
ShardedTensorFactory fused_column_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                           const std::vector<std::int64_t>& rows,
                                           const ParallelTensorOptions& options = {});
/// Does the same for two matrices of equal size: SwiGLU and other gated layers.
ShardedTensorFactory gated_column_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                           const ParallelTensorOptions& options = {});

}  // namespace dckpt
