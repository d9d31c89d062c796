#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dist_checkpointing/rewrite/optimizer_sharding.h"
#include "mapping/geometry/box.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

// How Megatron's distributed optimizer lays the parameters of each rank into its gradient buffers,
// and cuts these into buckets.

namespace dckpt {

/// What of a run decides where its parameters lie.
struct BucketSettings {
  std::int64_t tensor = 1;            ///< parallel sizes
  std::int64_t pipeline = 1;          //
  std::int64_t virtual_pipeline = 1;  ///< chunks of the model on each pipeline rank
  std::int64_t expert = 1;            //
  std::int64_t expert_tensor = 1;     //
  std::int64_t data = 1;              //
  std::int64_t context = 1;           //
  std::int64_t instances = 1;         ///< of the distributed optimizer
  std::int64_t bucket_size = 0;       ///< elements from which a bucket is complete; 0: all in one
  bool large_multiples = false;       ///< buckets end at multiples of 2^16
  bool local = false;                 ///< Megatron's own layers, not Transformer Engine's
  bool grouped_experts = false;       ///< an expert layer holds all experts' first matrices first
  bool float16_gradients = false;     ///< of parameters in float16; others' are float32
};

/// What `given` says, or else the args in the checkpoint's common state, or else what Megatron does
/// without them. `experts`, `fused_norms`: the model has any, under keys as Transformer Engine's
/// fused layers have them. Throws CheckpointError: (invalid argument) for unknown or unusable
/// arguments and for what nobody tells (the message says which); (unsupported) for runs whose
/// stages or buckets follow other rules.
BucketSettings bucket_settings(const Value& common, const RunArguments& given, bool experts,
                               bool fused_norms);

/// A bucket of one rank's buffer.
struct LaidOutBucket {
  struct Part {
    std::int64_t begin = 0;    ///< element
    std::uint32_t tensor = 0;  ///< position in the metadata
    Box box;                   ///< row-major from there on
  };
  std::vector<Part> parts;  ///< from front to back
  std::int64_t used = 0;    ///< elements up to the end of the last parameter
  std::int64_t padded = 0;  ///< a multiple of what its ranks share
  std::int64_t ranks = 1;   ///< that share it
};

struct LaidOutBuffer {
  DType parameters = DType::kBFloat16;
  DType gradients = DType::kFloat32;
  std::vector<LaidOutBucket> buckets;
};

/// The buffers of the ranks that differ in data parallelism alone.
struct LaidOutGroup {
  std::int64_t chain = 0;  ///< the optimizer: 0 of dense parameters, 1 of experts
  std::int64_t index = 0;  ///< the rank among those that share the model
  std::int64_t count = 0;  ///< of those
  std::vector<LaidOutBuffer> buffers;
};

/// `trained`: positions of the model's tensors that the optimizer has state for. Throws
/// CheckpointError: (unsupported) for modules whose order or cut is not known; (mismatch) for
/// tensors that cannot be cut so.
std::vector<LaidOutGroup> lay_out_buckets(const Metadata& metadata,
                                          std::span<const std::uint32_t> trained,
                                          const BucketSettings& settings);

}  // namespace dckpt
