#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/load/replicate.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/base/problem_list.h"
#include "mapping/planning/load_plan.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The tensors that one rank wants, and where they go. What it asks for has been checked against
/// the metadata.
struct TensorRequest {
  std::vector<WantedShard> wanted;   ///< `destination` is a position in `destinations`
  std::vector<Tensor> destinations;  ///< CPU tensors, laid out as `wanted` says
  std::vector<Tensor> to_zero;      ///< those of the destinations which what is stored may not fill
  std::vector<Replication> to_pad;  ///< what is to be done after reading
  std::vector<ReadItem> items;      ///< plan_reads of `wanted`
};

/// Makes the request of a rank, shard by shard, and collects all that is wrong with it.
class TensorRequestBuilder {
 public:
  /// All must outlive the builder.
  TensorRequestBuilder(const CheckpointReader& reader, const StoredKeys& keys,
                       const LoadOptions& options)
      : reader_(reader), keys_(keys), options_(options) {}

  /// Returns the tensor that will be filled: the shard's own, or a new one if it has none. A shard
  /// that does not fit what is stored is noted, and nothing is requested for it; then the tensor
  /// that is returned has no data.
  Tensor add(const ShardedTensor& shard);

  /// Throws CheckpointError: (mismatch) for what was noted; (corrupt) if the chunks of a wanted
  /// tensor do not make it up; (incomplete) if a file that has to be read is not there or too
  /// short.
  TensorRequest finish();

 private:
  bool is_covered(std::uint32_t stored);
  void request(WantedShard wanted, const Tensor& data);
  void request_padded(WantedShard wanted, const Tensor& data, const ShardedTensor& shard,
                      ShapeView stored_shape);

  const CheckpointReader& reader_;
  const StoredKeys& keys_;
  const LoadOptions& options_;
  TensorRequest request_;
  ProblemList problems_;
  ProblemList damaged_;
  std::unordered_map<std::uint32_t, bool> covered_;
};

}  // namespace dckpt
