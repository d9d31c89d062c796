#include "dist_checkpointing/save/state_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/planner/resolved_source.h"
#include "dist_checkpointing/save/planned_state.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/planning/save/local_plans.h"
#include "strategies/contract/common_state.h"
#include "strategies/registry/registry.h"
#include "strategies/tensor_io/state_source.h"

namespace dckpt {

struct StatePlan::Planned {
  SaveOptions options;
  std::unique_ptr<SavePlanner> planner;
  PlannedState state{};
  int rank = 0;
};

StatePlan::StatePlan(const StateDict& state, const Location& location, const SaveOptions& options,
                     int rank, int ranks) try
    : planned_(std::make_unique<Planned>(
          Planned{.options = canonical(with_planner_rules(options)), .planner = nullptr})) {
  if (rank < 0 || rank >= ranks)
    throw_error(ErrorCode::kInvalidArgument, "there is no rank {} of {}", rank, ranks);
  planned_->rank = rank;
  planned_->planner = make_save_planner(planned_->options);
  StateDict own = state;
  planned_->state = plan_rank(own.is_none() ? Value::dict() : std::move(own), *planned_->planner,
                              location, planned_->options, {rank, ranks});
} catch (...) {
  throw_checkpoint_error();
}

StatePlan::~StatePlan() = default;
StatePlan::StatePlan(StatePlan&&) noexcept = default;
StatePlan& StatePlan::operator=(StatePlan&&) noexcept = default;

std::span<const LocalShard> StatePlan::shards() const noexcept {
  return planned_->state.described.shards;
}

const SavePlan& StatePlan::items() const noexcept {
  return planned_->state.items;
}

GlobalPlan StatePlan::global_plan(std::span<const SavePlan> plans) try {
  const SaveOptions& options = planned_->options;
  if (options.registered_planner.name.empty())
    return create_default_global_save_plan(LocalPlans(plans), global_plan_options(options));
  return of_planner(options, planned_->rank, [&] {
    GlobalPlan plan = planned_->planner->create_global_plan(LocalPlans(plans));
    if (overridden_steps(options).global_plan)
      validate_global_plan(plan, LocalPlans(plans), global_plan_options(options).redundant());
    return plan;
  });
} catch (...) {
  throw_checkpoint_error();
}

std::variant<Tensor, Bytes> StatePlan::resolve_data(const WriteItem& item) try {
  const DescribedState& described = planned_->state.described;
  const SavePlanner& planner = *planned_->planner;
  if (std::ranges::find(items(), item) == items().end())
    throw_error(ErrorCode::kInvalidArgument, {.key = item.key}, "the item is not of this plan");
  if (item.kind == WriteItem::Kind::kObject) {
    const Bytes& stored = described.object_bytes[item.source];
    return of_planner(planned_->options, planned_->rank, [&] {
      return item.key != kCommonStateKey && planner.resolves(item)
                 ? planner.transform_object(item, stored)
                 : stored;
    });
  }
  std::vector<DType> dtypes;
  for (const Tensor& tensor : described.tensors) dtypes.push_back(tensor.dtype());
  StateSource source(described.tensors, {});
  ResolvedSource resolved(source, planner, dtypes,
                          planner_text(planned_->options.registered_planner.name));
  Tensor data = Tensor::empty(item.properties.dtype, item.chunk.sizes);
  const MutableByteView bytes = data.bytes();
  std::size_t filled = 0;
  resolved.tensor(item, [&](ByteView piece) {
    std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(filled));
    filled += piece.size();
  });
  return data;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
