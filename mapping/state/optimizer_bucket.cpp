#include "mapping/state/optimizer_bucket.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/tree.h"

namespace dckpt {
namespace {

bool is_param(const Value& leaf) {
  return leaf.is(Value::Kind::kShardedTensor) || leaf.is(Value::Kind::kShardedTensorFactory);
}

std::int64_t elements_of(const Value& param) {
  if (!param.is(Value::Kind::kShardedTensor)) return param.as_factory().data.numel();
  const ShardedTensor& shard = param.as_sharded_tensor();
  if (shard.flattened_range)
    throw_error(
        ErrorCode::kInvalidArgument, {.key = shard.key},
        "a parameter of a distributed optimizer's bucket is itself a flattened range; describe "
        "the whole local tensor");
  return shard.numel();
}

std::int64_t rounded_up(std::int64_t number, std::int64_t multiple) {
  const auto up = checked_add(number, multiple - 1);
  if (!up)
    throw_error(ErrorCode::kInvalidArgument,
                "the elements of a distributed optimizer's bucket do not fit in 64 bits");
  return *up / multiple * multiple;
}

/// The starts of the parameters of a bucket, in the order of the tree, and the elements that this
/// rank owns.
struct LaidOut {
  std::vector<std::int64_t> begins;
  FlattenedRange owned;
};

LaidOut lay_out(const ParallelRank& rank, const Value& params, const OptimizerBucket& bucket) {
  if (bucket.param_alignment < 1 || bucket.end_alignment < 1 || bucket.end_alignment > INT32_MAX) {
    throw_error(ErrorCode::kInvalidArgument, "a bucket's alignments are at least 1, not {} and {}",
                bucket.param_alignment, bucket.end_alignment);
  }
  LaidOut result;
  std::int64_t end = 0;
  visit_leaves(params, [&](const Value& leaf) {
    if (!is_param(leaf)) return;
    result.begins.push_back(rounded_up(end, bucket.param_alignment));
    const auto next = checked_add(result.begins.back(), elements_of(leaf));
    if (!next)
      throw_error(ErrorCode::kInvalidArgument,
                  "the elements of a distributed optimizer's bucket do not fit in 64 bits");
    end = *next;
  });
  const std::int64_t ranks = bucket.experts ? rank.expert_copies() : rank.copies();
  const std::int64_t size = rounded_up(end, std::lcm(bucket.end_alignment, ranks));
  const std::int64_t part = size / ranks * (bucket.experts ? rank.edp : rank.dp_cp);
  result.owned = bucket.owned.value_or(FlattenedRange{part, part + size / ranks});
  const auto [owned_begin, owned_end] = result.owned;
  if (owned_begin < 0 || owned_end < owned_begin || owned_end > size)
    throw_error(ErrorCode::kInvalidArgument,
                "a rank cannot own the elements [{}, {}) of a bucket of {}", owned_begin, owned_end,
                size);
  return result;
}

ReplicaId owner(const ReplicaId& model) {
  Shape parts = model.parts();
  parts.back() = 0;
  return model.is_tuple() ? ReplicaId(std::move(parts)) : ReplicaId(0);
}

Value flattened(const Value& param, const std::string& prefix, Tensor data, FlattenedRange range) {
  if (param.is(Value::Kind::kShardedTensorFactory)) {
    ShardedTensorFactory factory = param.as_factory();
    factory.key = prefix + factory.key;
    factory.data = std::move(data);
    factory.replica_id = owner(factory.replica_id);
    factory.flattened_range = range;
    return factory;
  }
  ShardedTensor shard = param.as_sharded_tensor();
  shard.key = prefix + shard.key;
  shard.dtype = data.dtype();
  shard.data = std::move(data);
  shard.replica_id = owner(shard.replica_id);
  shard.flattened_range = range;
  shard.validate();
  return shard;
}

}  // namespace

FlattenedRange owned_elements(const ParallelRank& rank, const Value& params,
                              const OptimizerBucket& bucket) {
  return lay_out(rank, params, bucket).owned;
}

Value distributed_optimizer_state(const ParallelRank& rank, const Value& params,
                                  const std::map<std::string, Tensor>& states,
                                  const OptimizerBucket& bucket) {
  const LaidOut bounds = lay_out(rank, params, bucket);
  const FlattenedRange& owned = bounds.owned;
  const Value tensors = extract_matching(params, is_param, ListForm::kDict).matching;
  Value result = Value::dict();
  for (const auto& named : states) {
    const std::string& name = named.first;
    const Tensor& state = named.second;
    if (state.dim() != 1 || state.numel() != owned.end - owned.begin) {
      throw_error(ErrorCode::kInvalidArgument,
                  "the optimizer's state {} has shape {}, but the rank owns the elements [{}, "
                  "{}) of the bucket, {} in all",
                  quote(name), to_string(state.shape()), owned.begin, owned.end,
                  owned.end - owned.begin);
    }
    std::size_t number = 0;
    const Value all = map_leaves(tensors, [&](const Value& param) {
      const std::int64_t first = bounds.begins[number++];
      const std::int64_t end = first + elements_of(param);
      const std::int64_t from = std::max(owned.begin, first);
      const std::int64_t to = std::min(owned.end, end);
      if (from >= to) return Value();
      return flattened(param, str_format("{}.{}.", bucket.prefix, name),
                       state.narrow(0, from - owned.begin, to - from), {from - first, to - first});
    });
    result[name] = all.is_dict() ? extract_matching(all, is_param).matching : Value::dict();
  }
  return result;
}

}  // namespace dckpt
