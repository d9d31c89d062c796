#include "mapping/state/parallel_shards.h"

#include <span>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

/// Returns whether axis 0 counts the experts of a rank.
bool is_stack_of_experts(const ParallelTensorOptions& options) {
  return options.experts && !options.experts->number;
}

/// Checks that the experts are this rank's, and returns how many it has.
std::int64_t local_experts(const ParallelRank& rank, const Experts& experts, const Tensor& data,
                           const std::string& key) {
  const std::int64_t ranks = rank.layout.ep;
  if (experts.count < 1 || experts.count % ranks != 0) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "{} experts do not divide by {} expert parallel ranks", experts.count, ranks);
  }
  const std::int64_t count = experts.count / ranks;
  if (experts.number) {
    const std::int64_t first = rank.ep * count;
    if (*experts.number < first || *experts.number >= first + count) {
      throw_error(ErrorCode::kInvalidArgument, {.key = key},
                  "expert {} is not on expert parallel rank {}, which has {} to {} of {}",
                  *experts.number, rank.ep, first, first + count - 1, experts.count);
    }
  } else if (experts.in_key) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "a key that names an expert needs the expert's number (Experts::number)");
  } else if (data.dim() == 0 || data.shape()[0] != count) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "axis 0 of shape {} should count the experts of this rank: {}, as {} are "
                "divided by {} expert parallel ranks",
                to_string(data.shape()), count, experts.count, ranks);
  }
  return count;
}

/// Describes a tensor that is cut along `axis`, if there is one.
ShardedTensor described(const ParallelRank& rank, std::string key, Tensor data,
                        std::optional<std::int64_t> axis, const ParallelTensorOptions& options) {
  std::vector<RankOffset> offsets;
  std::int64_t prepended = 0;
  if (options.layer) {
    const auto [number, count] = *options.layer;
    if (number < 0 || number >= count)
      throw_error(ErrorCode::kInvalidArgument, {.key = key}, "there is no layer {} of {}", number,
                  count);
    offsets.push_back({.axis = prepended++, .rank = number, .count = count});
  }
  if (options.experts) {
    const Experts& experts = *options.experts;
    (void)local_experts(rank, experts, data, key);
    if (!experts.number)
      offsets.push_back({.axis = prepended, .rank = rank.ep, .count = rank.layout.ep});
    else if (!experts.in_key)
      offsets.push_back({.axis = prepended++, .rank = *experts.number, .count = experts.count});
  }
  const int tp = options.experts ? rank.etp : rank.tp;
  if (axis) {
    const std::int64_t stack = is_stack_of_experts(options) ? 1 : 0;
    if (*axis < 0 || *axis + stack >= static_cast<std::int64_t>(data.dim()))
      throw_error(ErrorCode::kInvalidArgument, {.key = key},
                  "a tensor of shape {} has no axis {} to cut over tensor parallel ranks",
                  to_string(data.shape()), *axis + stack);
    offsets.push_back({.axis = prepended + stack + *axis,
                       .rank = tp,
                       .count = options.experts ? rank.layout.etp : rank.layout.tp});
  }
  const int copy = options.experts ? rank.edp : rank.dp_cp;
  return ShardedTensor::from_rank_offsets(
      std::move(key), std::move(data), std::span<const RankOffset>(offsets),
      {.replica_id = {options.pipeline_copy, axis ? 0 : tp, copy},
       .prepend_axis_num = prepended,
       .allow_shape_mismatch = options.allow_shape_mismatch});
}

}  // namespace

ShardedTensor tensor_parallel(const ParallelRank& rank, std::string key, Tensor data,
                              std::int64_t axis, const ParallelTensorOptions& options) {
  return described(rank, std::move(key), std::move(data), axis, options);
}

ShardedTensor column_parallel(const ParallelRank& rank, std::string key, Tensor data,
                              const ParallelTensorOptions& options) {
  return described(rank, std::move(key), std::move(data), 0, options);
}

ShardedTensor row_parallel(const ParallelRank& rank, std::string key, Tensor data,
                           const ParallelTensorOptions& options) {
  return described(rank, std::move(key), std::move(data), 1, options);
}

ShardedTensor replicated(const ParallelRank& rank, std::string key, Tensor data,
                         const ParallelTensorOptions& options) {
  return described(rank, std::move(key), std::move(data), std::nullopt, options);
}

ShardedTensor vocabulary_parallel(const ParallelRank& rank, std::string key, Tensor data,
                                  ParallelTensorOptions options) {
  options.allow_shape_mismatch = true;
  return described(rank, std::move(key), std::move(data), 0, options);
}

std::int64_t padded_vocabulary(const ParallelRank& rank, std::int64_t tokens,
                               std::int64_t divisible_by) {
  const auto multiple = checked_mul(divisible_by, std::int64_t{rank.layout.tp});
  const auto up = multiple ? checked_add(tokens, *multiple - 1) : std::nullopt;
  if (tokens < 0 || divisible_by < 1 || !up)
    throw_error(ErrorCode::kInvalidArgument,
                "a vocabulary of {} tokens cannot be padded to a multiple of {} · {}", tokens,
                divisible_by, rank.layout.tp);
  return *up / *multiple * *multiple;
}

}  // namespace dckpt
