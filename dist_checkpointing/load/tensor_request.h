#pragma once

#include <optional>
#include <string>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/load/stored_keys.h"
#include "mapping/base/problem_list.h"
#include "mapping/planning/load_plan.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/reader.h"

namespace dckpt {

/// The tensors that one rank wants, and where they go. What it asks for has been checked against the metadata.
struct TensorRequest {
  std::vector<WantedShard> wanted;   ///< `destination` is a position in `destinations`
  std::vector<Tensor> destinations;  ///< CPU tensors, laid out as `wanted` says
  std::vector<Tensor> to_zero;       ///< those of the destinations which what is stored may not fill
  std::vector<ReadItem> items;       ///< plan_reads of `wanted`
};

/// Makes the request of a rank, leaf by leaf, and collects all that is wrong with it. A leaf with a problem is noted and nothing is requested for it.
class TensorRequestBuilder {
 public:
  /// All must outlive the builder.
  TensorRequestBuilder(const CheckpointReader& reader, const StoredKeys& keys, const LoadOptions& options) : reader_(reader), keys_(keys), options_(options) {}

  /// The tensor that will be filled: the shard's own, or a new one if it has none.
  std::optional<Tensor> add(const ShardedTensor& shard);

  /// A whole stored tensor, into `data` or a new tensor.
  std::optional<Tensor> add_whole(std::uint32_t stored, const Tensor* data);

  /// Notes a name that is not stored.
  void add_unknown(const std::string& key) { unknown_.add(keys_.describe_unknown(key)); }

  /// Throws CheckpointError: (mismatch) for what was noted; (corrupt) if the chunks of a wanted tensor do not make it up; (incomplete) if a file that has to
  /// be read is not there or too short.
  TensorRequest finish();

 private:
  bool fits(const std::string& key, ShapeView shape, DType dtype, std::uint32_t stored, bool clip);
  bool mismatch_allowed(const std::string& key) const;
  Tensor add_destination(WantedShard wanted, Tensor data);

  const CheckpointReader& reader_;
  const StoredKeys& keys_;
  const LoadOptions& options_;
  TensorRequest request_;
  ProblemList unknown_;
  ProblemList different_;
};

}  // namespace dckpt
