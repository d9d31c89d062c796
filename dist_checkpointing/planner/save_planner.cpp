#include "dist_checkpointing/planner/save_planner.h"

#include <array>

#include "dist_checkpointing/planner/no_setup.h"
#include "dist_checkpointing/planner/planner_kind.h"
#include "dist_checkpointing/planner/shard_spec.h"
#include "strategies/contract/common_state.h"
#include "strategies/registry/registry.h"

namespace dckpt {

PlannerKind planner_kind(const SaveOptions& options) noexcept {
  return options.compat == Compat::kDcp && options.planner.kind == PlannerKind::kMegatron
             ? PlannerKind::kDcp
             : options.planner.kind;
}

SavePlan create_default_local_save_plan(const SaveSetup& setup) {
  return plan_local_save(setup.shards, setup.options.flattened);
}

std::vector<SavePlan> dedup_save_plans(std::span<const SavePlan> plans, bool save_to_lowest_rank) {
  const GlobalPlan global =
      plan_global_save(plans, {.kind = PlannerKind::kDcp,
                               .dedup = save_to_lowest_rank ? Dedup::kLowestRank : Dedup::kBalanced,
                               .validate = false});
  std::vector<SavePlan> kept;
  for (std::size_t rank = 0; rank < plans.size(); ++rank)
    kept.push_back(final_plan(plans[rank], global.items[rank]));
  return kept;
}

GlobalPlanOptions global_plan_options(const SaveOptions& options) {
  PlannerOptions planner = options.planner;
  planner.kind = planner_kind(options);
  return {.kind = planner.kind,
          .dedup = planner.effective_dedup(),
          .use_replicas = options.parallel.enabled,
          .split_replicas = planner.split_replicas,
          .validate = planner.validate};
}

void DefaultSavePlanner::set_up_planner(const SaveSetup& setup) {
  setup_.emplace(setup);
  rank_ = setup.rank;
  ranks_ = setup.ranks;
  global_ = global_plan_options(setup.options);
}

const SaveSetup& DefaultSavePlanner::setup() const {
  if (!setup_) throw_no_setup();
  return *setup_;
}

SavePlan DefaultSavePlanner::add_tensor(const ShardedTensor& tensor) {
  if (tensor.replica_id.is_main() && (!tensor.data || !tensor.data->has_data()))
    throw_error(ErrorCode::kInvalidArgument, {.key = tensor.key},
                "a tensor that a planner adds needs data");
  TensorShard shard = shard_spec(tensor);
  shard.source = static_cast<std::uint32_t>(setup().tensors.size() + added_.tensors.size());
  SavePlan items = plan_local_save(std::array<LocalShard, 1>{shard}, setup().options.flattened);
  for (WriteItem& item : items) item.added = true;
  added_.shards.emplace_back(std::move(shard));
  added_.tensors.push_back(tensor.data ? *tensor.data
                                       : Tensor::meta(tensor.dtype, tensor.data_shape()));
  return items;
}

WriteItem DefaultSavePlanner::add_object(const ShardedObject& object) {
  if (!object.has_data)
    throw_error(ErrorCode::kInvalidArgument, {.key = object.key},
                "an object that a planner adds needs data");
  const StrategySpec& strategy = setup().options.strategy;
  Bytes bytes =
      stored_object(object.data, find_save_strategy(strategy.name, strategy.version).conventions);
  ObjectShard shard = shard_spec(object);
  shard.nbytes = bytes.size();
  shard.source = static_cast<std::uint32_t>(setup().objects.size() + added_.objects.size());
  SavePlan items = plan_local_save(std::array<LocalShard, 1>{shard}, setup().options.flattened);
  items.front().added = true;
  added_.shards.emplace_back(std::move(shard));
  added_.objects.push_back(std::move(bytes));
  return std::move(items.front());
}

SavePlan DefaultSavePlanner::create_local_plan() {
  return create_default_local_save_plan(setup());
}

GlobalPlan DefaultSavePlanner::create_global_plan(const LocalPlans& plans) {
  GlobalPlanOptions options = global_;
  options.choose_writers = [this](std::span<WriterChoice> parts) { choose_writers(parts); };
  return create_default_global_save_plan(plans, options);
}

}  // namespace dckpt
