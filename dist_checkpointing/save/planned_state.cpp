#include "dist_checkpointing/save/planned_state.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <variant>

#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/save/key_paths.h"
#include "mapping/base/text.h"
#include "strategies/contract/common_state.h"
#include "strategies/registry/registry.h"

namespace dckpt {
namespace {

/// Throws for contents that the strategy would have to leave out.
void check_contents(const DescribedState& described, const SaveStrategyEntry& strategy,
                    const std::string& read_by) {
  if (!read_by.empty() && !strategy.conventions.records)
    throw_error(ErrorCode::kUnsupported,
                "only the load planner {} can read what the planner stores, and strategy {} has no "
                "place to say so; save with torch_dist or dcp",
                quote(read_by), quote(strategy.name));
  if (strategy.conventions.megatron_fsdp)
    throw_error(ErrorCode::kUnsupported,
                "strategy {} is for conversions, which make the keys of "
                "Megatron-FSDP; save as 'torch_dist' and convert, or as 'dcp' "
                "if the state has these keys",
                quote(strategy.name));
  const auto refuse = [&](const std::string& what, const std::string& key) {
    throw_error(
        ErrorCode::kUnsupported, {.key = key},
        "strategy {} does not store {}; save with another strategy, or leave them out of the state",
        quote(strategy.name), what);
  };
  if (strategy.arrange)
    throw_error(ErrorCode::kUnsupported,
                "strategy {} is for conversions only; save with torch_dist, then convert the "
                "checkpoint (dckpt convert --to {})",
                quote(strategy.name), strategy.name);
  if (!strategy.capabilities.objects) {
    for (const LocalShard& shard : described.shards) {
      if (const auto* const object = std::get_if<ObjectShard>(&shard))
        refuse("objects", object->key);
    }
  }
  if (!strategy.capabilities.common_state && described.common &&
      !described.common->as_dict().empty()) {
    const Value& first = described.common->as_dict().begin()->first;
    refuse("values that are not sharded", first.is_str() ? first.as_str() : "");
  }
}

/// Requires the common state's item. A planner may leave out other items, but readers of this form
/// need it.
void require_common_state(std::span<const LocalShard> shards, const SavePlan& items) {
  const bool has_one = std::ranges::any_of(shards, [](const LocalShard& shard) {
    const auto* const object = std::get_if<ObjectShard>(&shard);
    return object != nullptr && object->key == kCommonStateKey;
  });
  if (has_one && std::ranges::none_of(
                     items, [](const WriteItem& item) { return item.key == kCommonStateKey; }))
    throw_error(ErrorCode::kMismatch, {.key = kCommonStateKey},
                "the planner's local plan lacks the object of the common state, without "
                "which no reader opens the checkpoint; keep its item");
}

/// Appends what the planner has added to the state.
void take_added(SavePlanner& planner, DescribedState& described) {
  SavePlanner::Added added = planner.take_added();
  const auto append = [](auto& all, auto& more) {
    std::ranges::move(more, std::back_inserter(all));
  };
  if (!described.paths.empty()) {
    for (const LocalShard& shard : added.shards) {
      const std::string key = std::visit([](const auto& its) { return its.key; }, shard);
      described.paths.emplace_back(key, KeyPath{key});
    }
  }
  append(described.shards, added.shards);
  append(described.tensors, added.tensors);
  append(described.object_bytes, added.objects);
}

}  // namespace

ItemSources sources_of(const DescribedState& described) {
  return {.shards = described.shards,
          .tensors = described.tensors,
          .objects = described.object_bytes,
          .own_tensors = described.own_tensors,
          .own_objects = described.own_objects};
}

PlannedState plan_rank(StateDict state, SavePlanner& planner, const Location& location,
                       const SaveOptions& options, RankOf rank) {
  const SaveStrategyEntry& strategy =
      find_save_strategy(options.strategy.name, options.strategy.version);
  PlannedState planned;
  DescribedState& described = planned.described;
  const auto setup = [&] {
    return SaveSetup{.state = state,
                     .shards = described.shards,
                     .tensors = described.tensors,
                     .objects = described.object_bytes,
                     .location = location,
                     .options = options,
                     .rank = rank.rank,
                     .ranks = rank.ranks};
  };
  of_planner(options, rank.rank, [&] {
    state = planner.prepare_state(state, setup());
    if (state.is_none()) state = Value::dict();
  });
  described = describe_state(state, options, rank.rank);
  described.own_tensors = described.tensors.size();
  described.own_objects = described.object_bytes.size();
  check_contents(described, strategy, read_by(options));
  of_planner(options, rank.rank, [&] {
    planner.set_up_planner(setup());
    planned.items = planner.create_local_plan();
    planner.forget_setup();
    if (!overridden_steps(options).local_plan) return;
    take_added(planner, described);
    check_local_plan(planned.items, sources_of(described), planner);
    set_grid_keys(planned.items);
    require_common_state(described.shards, planned.items);
    described.paths = with_planned_keys(described.paths, planned.items, described.shards);
  });
  check_contents(described, strategy, read_by(options));
  return planned;
}

}  // namespace dckpt
