#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "mapping/base/api.h"
#include "mapping/geometry/parallel_layout.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// The way in which a distributed optimizer places parameters in a bucket and divides it among the
/// ranks.
struct OptimizerBucket {
  std::int64_t param_alignment = 1;  ///< each parameter begins at a multiple of it (Megatron-Core:
                                     ///< 64)
  /// The bucket ends at a multiple of it and of the number of ranks (Megatron-Core: 128).
  std::int64_t end_alignment = 1;
  bool experts = false;  ///< the bucket's parameters are of experts: it is divided among expert
                         ///< data parallel ranks
  /// Elements of the bucket that this rank owns, if they are not one of equal parts.
  std::optional<FlattenedRange> owned{};
  std::string prefix = "optimizer.state";
};

/// Returns the elements of a bucket that this rank owns. `params` is a tree of ShardedTensors and
/// factories, whose elements the bucket has in the order of the tree.
FlattenedRange owned_elements(const ParallelRank& rank, const Value& params,
                              const OptimizerBucket& bucket = {});

/// Describes a distributed optimizer's state: per name ("exp_avg") a tree like `params`, with the
/// part of each parameter's state that this rank owns, under the key PREFIX.NAME.KEY; parameters of
/// which it owns nothing are missing. `states` has 1-D tensors of the elements that
/// owned_elements() gives; the results share their memory.
Value distributed_optimizer_state(const ParallelRank& rank, const Value& params,
                                  const std::map<std::string, Tensor>& states,
                                  const OptimizerBucket& bucket = {});

}  // namespace dckpt
