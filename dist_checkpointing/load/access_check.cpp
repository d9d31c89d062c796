#include "dist_checkpointing/load/access_check.h"

#include <vector>

#include "mapping/planning/global_plan.h"
#include "mapping/planning/save_plan.h"
#include "strategies/comm/agree.h"
#include "strategies/describe.h"

namespace dckpt {
namespace {

/// What a save of the same shards would plan.
Bytes plan_of(const Value& sharded) {
  const ShardedLeaves leaves = collect_sharded(sharded);
  std::vector<LocalShard> shards;
  for (const ShardedTensor* const tensor : leaves.tensors) shards.emplace_back(describe_tensor(*tensor));
  for (const ShardedObject* const object : leaves.objects) shards.emplace_back(describe_object(*object));
  return encode_plan(plan_local_save(shards, FlattenedForm::kBoxes));
}

}  // namespace

void check_access(const Value& sharded, Communicator& comm) {
  Bytes mine;
  agree(comm, "describing what is asked for", [&] { mine = plan_of(sharded); });
  const std::vector<Bytes> all = comm.gather(mine, 0);
  agree(comm, "checking who asks for what (load.validate_access_integrity)", [&] {
    if (comm.rank() != 0) return;
    GlobalPlanner planner({.kind = PlannerKind::kMegatron, .validate = true});
    for (const Bytes& plan : all) planner.add(decode_plan(plan));
    std::move(planner).finish();
  });
}

}  // namespace dckpt
