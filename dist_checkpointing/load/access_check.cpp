#include "dist_checkpointing/load/access_check.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/planning/save/messages.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/comm/agree.h"
#include "strategies/parallel/load_plan_cache_content.h"

namespace dckpt {
namespace {

/// Returns the plan that a save of the same shards would make.
Bytes plan_of(const ShardedLeaves& leaves) {
  std::vector<LocalShard> shards;
  for (const ShardedTensor* const tensor : leaves.tensors) shards.emplace_back(shard_spec(*tensor));
  for (const ShardedObject* const object : leaves.objects) shards.emplace_back(shard_spec(*object));
  return encode_plan(plan_local_save(shards, FlattenedForm::kBoxes));
}

/// Returns whether every key is requested once, and as a whole. A single rank needs no other check,
/// and planning very many small tensors would take as long as reading them.
bool whole_keys_once(const ShardedLeaves& leaves) {
  std::unordered_set<std::string_view> keys;
  const auto is_whole = [&](const ShardedTensor* tensor) {
    return !tensor->flattened_range && tensor->replica_id.is_main() &&
           tensor->prepend_axis_num == 0 && equal(tensor->local_shape, tensor->global_shape) &&
           std::ranges::all_of(tensor->global_offset, [](std::int64_t at) { return at == 0; }) &&
           keys.insert(tensor->key).second;
  };
  return leaves.objects.empty() && std::ranges::all_of(leaves.tensors, is_whole);
}

}  // namespace

void check_access(LoadCall& load, const ShardedLeaves& leaves, PlannerKind kind) {
  load.report.access_checked = load.options.validate_access_integrity;
  if (!load.options.validate_access_integrity) return;
  Communicator& comm = load.comm;
  LoadPlanCache* const cache = load.plan_cache;
  if (comm.size() == 1 && whole_keys_once(leaves)) return;
  LoadPlanCache::Access mine{.kind = kind, .rank = comm.rank(), .ranks = comm.size()};
  agree(comm, "describing what is asked for", [&] { mine.request = plan_of(leaves); });
  const std::array<std::int64_t, 1> is_known{cache != nullptr && cache->is_checked(mine)};
  if (comm.all_reduce(is_known, ReduceOp::kMin).front() != 0) return;
  const std::vector<Bytes> all = comm.gather(mine.request, 0);
  decide(comm, [&] {
    GlobalPlanner global({.kind = kind, .validate = true});
    for (const Bytes& plan : all) global.add(decode_plan(plan));
    try {
      std::move(global).finish();
    } catch (const CheckpointError& error) {
      throw CheckpointError(
          error.code(),
          error.message() +
              "\nTo load parts of what is stored, set load.validate_access_integrity to false.",
          error.context(), error.cause());
    }
  });
  if (cache != nullptr) cache->remember_checked(std::move(mine));
}

}  // namespace dckpt
