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
// store the state of the distributed optimizer in the order of its gradient buffers in memory: the
// parameters of a rank one after the other, without names.

namespace dckpt {

/// A bucket of one rank's gradient buffer, with 1-D tensors
/// "[chained_C.]optimizer.distributed.dp_group_idx_I.gbuf_idx_G.dtype_(D).bucket_idx_B.NAME". If
/// the keys lack "bucket_idx_B.", it is all buckets of a buffer without the padding at their ends
/// (gathered_state.h).
struct StoredBucket {
  std::string chain;       ///< "chained_0."; empty if the optimizer is not a chain of several
  std::string buffer;      ///< the key up to "bucket_idx_"; buckets of a buffer follow each other
  std::int64_t group = 0;  ///< I: the rank among those of tensor and pipeline parallelism
  std::int64_t buffer_index = 0;  ///< G
  std::int64_t index = 0;         ///< B
  std::int64_t used = 0;          ///< elements up to the end of the last parameter
  bool joined = false;            ///< it is all buckets of the buffer
  /// Positions in the metadata by name: "param" and the moments.
  std::map<std::string, std::uint32_t, std::less<>> state{};
};

/// Returns whether a tensor belongs to such a bucket. Its gaps between parameters hold anything.
bool is_bucket_key(std::string_view key);

/// Returns all buckets of a checkpoint, ordered by buffer and index. Throws CheckpointError
/// (mismatch) for buckets whose tensors differ in size or are not 1-D float32, or that have no
/// "param".
std::vector<StoredBucket> optimizer_buckets(const CheckpointReader& reader);

/// A chunk of a model tensor, and the location of its parameters and moments.
struct BucketPlace {
  std::uint32_t tensor = 0;  ///< position of the model tensor in the metadata
  Box chunk;
  std::uint32_t bucket = 0;  ///< position in the list of buckets
  std::int64_t begin = 0;    ///< first element in the bucket
};

/// The locations of a model's chunks in buckets.
struct FoundInBuckets {
  std::vector<BucketPlace> places{};
  Findings findings{};
};

/// Finds the model's tensors in the buckets by their values: after every step Megatron copies the
/// main parameters, rounded to the model's dtype, into the model. So neither the order of modules
/// nor the parallel sizes have to be known. Values are compared at the beginning, middle and end of
/// every chunk, and all of them where several chunks remain. Chunks with the same values (norms
/// that training has not moved yet) are told apart by their place in Megatron's order of modules,
/// and a finding names them. A chunk that several ranks hold is listed once, at its first rank.
/// `go_on`, if not empty, is called now and then, and throws to stop. Throws CheckpointError:
/// (mismatch) for a bucket that holds anything else, (unsupported) for equal values of modules
/// whose order is not known.
FoundInBuckets find_in_buckets(const CheckpointReader& reader,
                               std::span<const StoredBucket> buckets, const ReadOptions& options,
                               const std::function<void()>& go_on);

}  // namespace dckpt
