#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "configs/policy/options.h"
#include "dist_checkpointing/load/edge_padding.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/base/problem_list.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// The tensors that one rank requests, and their destinations, checked against the metadata.
struct TensorRequest {
  std::vector<WantedShard> wanted;   ///< `destination` is a position in `destinations`
  std::vector<Tensor> destinations;  ///< with data, laid out as `wanted` says
  std::vector<std::string> keys;    ///< requested keys of the destinations; filled only `with_keys`
  std::vector<Tensor> to_zero;      ///< destinations that the stored data may not fill completely
  std::vector<EdgePadding> to_pad;  ///< padding to do after reading
  std::vector<CastTensor> casts;    ///< destinations of another dtype than the stored one
  std::vector<ReadItem> items;      ///< plan_reads of `wanted`
};

/// Builds the request of a rank, shard by shard, and collects all its problems.
class TensorRequestBuilder {
 public:
  /// All arguments must outlive the builder.
  TensorRequestBuilder(const CheckpointReader& reader, const StoredKeys& keys,
                       const LoadOptions& options, bool with_keys = false)
      : reader_(reader), keys_(keys), options_(options), with_keys_(with_keys) {}

  /// Returns the tensor to fill: the shard's own, or a new one if it has none. If the shard does
  /// not fit the stored tensor, the problem is recorded, nothing is requested, and the returned
  /// tensor has no data.
  Tensor add(const ShardedTensor& shard);

  /// Throws CheckpointError: (mismatch) for recorded problems; (corrupt) if the chunks of a
  /// requested tensor do not cover it; (incomplete) if a file that has to be read is missing or too
  /// short.
  TensorRequest finish();

 private:
  bool is_covered(std::uint32_t stored);
  void request(WantedShard wanted, const Tensor& data, const std::string& key);
  void request_padded(WantedShard wanted, const Tensor& data, const ShardedTensor& shard,
                      ShapeView stored_shape);

  const CheckpointReader& reader_;
  const StoredKeys& keys_;
  const LoadOptions& options_;
  const bool with_keys_;
  TensorRequest request_;
  ProblemList problems_;
  ProblemList damaged_;
  std::unordered_map<std::uint32_t, bool> covered_;
};

}  // namespace dckpt
