#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/finding.h"
#include "mapping/geometry/box.h"
#include "strategies/contract/reader.h"
#include "strategies/tensor_io/read_tensors.h"

// Megatron's sharding types dp_reshardable, fully_sharded_bucket_space and dp_zero_gather_scatter
// store the state of the distributed optimizer as its gradient buffers lie in memory: the
// parameters of a rank one after the other, without names.

namespace dckpt {

/// A bucket of one rank's gradient buffer: its 1-D tensors
/// "[chained_C.]optimizer.distributed.dp_group_idx_I.gbuf_idx_G.dtype_(D).bucket_idx_B.NAME". Or
/// all of them without what pads their ends, if the keys have no "bucket_idx_B."
/// (gathered_state.h).
struct StoredBucket {
  std::string chain;       ///< "chained_0."; empty if the optimizer is not a chain of several
  std::string buffer;      ///< the key up to "bucket_idx_"; buckets of a buffer follow each other
  std::int64_t group = 0;  ///< I: the rank among those of tensor and pipeline parallelism
  std::int64_t buffer_index = 0;  ///< G
  std::int64_t index = 0;         ///< B
  std::int64_t used = 0;          ///< elements up to the end of the last parameter
  bool joined = false;            ///< all buckets of the buffer
  /// Positions in the metadata by name: "param" and the moments.
  std::map<std::string, std::uint32_t, std::less<>> state{};
};

/// All of a checkpoint, ordered by buffer and index. Throws CheckpointError (mismatch) for buckets
/// whose tensors differ in size or are not 1-D of float32, or which have no "param".
std::vector<StoredBucket> optimizer_buckets(const CheckpointReader& reader);

/// A chunk of a model's tensor, and where its parameters and moments are.
struct BucketPlace {
  std::uint32_t tensor = 0;  ///< the model's: position in the metadata
  Box chunk;
  std::uint32_t bucket = 0;  ///< position in the list of buckets
  std::int64_t begin = 0;    ///< element in it
};

/// Where the chunks of a model are.
struct FoundInBuckets {
  std::vector<BucketPlace> places{};
  Findings findings{};
};

/// Finds the model's tensors in the buckets by their values: after every step Megatron copies the
/// main parameters, rounded to the model's dtype, into the model. So neither the order of modules
/// nor the parallel sizes have to be known. Values are compared at the beginning, middle and end of
/// every chunk, and all of them where that leaves several. What has the same values (norms that
/// training has not moved yet) is told apart by its place in Megatron's order of modules, and
/// a finding names it. Every chunk is listed once, also if several ranks hold it: that of the
/// first. `go_on`, if not empty, is called now and then, and throws to stop. Throws
/// CheckpointError: (mismatch) for a bucket that holds anything else, (unsupported) for equal
/// values of modules whose order is not known.
FoundInBuckets find_in_buckets(const CheckpointReader& reader,
                               std::span<const StoredBucket> buckets, const ReadOptions& options,
                               const std::function<void()>& go_on);

}  // namespace dckpt
