#include "mapping/planning/save/save_planner.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/save/messages.h"

namespace dckpt {
namespace {

/// How `plan` differs from the one of last time, which may come from a checkpoint.
std::string what_changed(ByteView before, const SavePlan& plan) {
  SavePlan old;
  try {
    old = decode_plan(before);
  } catch (const CheckpointError&) {
    return "the plan of last time cannot be read";
  }
  std::unordered_map<std::string_view, std::vector<const WriteItem*>> remaining;
  for (const WriteItem& item : old) remaining[item.key].push_back(&item);
  for (const WriteItem& item : plan) {
    const auto found = remaining.find(item.key);
    if (found == remaining.end()) return str_format("key {} is new", quote(item.key));
    WriteItem travelled = item;
    if (item.kind == WriteItem::Kind::kObject) travelled.nbytes = 0;
    if (std::erase_if(found->second,
                      [&](const WriteItem* candidate) { return *candidate == travelled; }) == 0) {
      return str_format("key {} has another shape, dtype, place or replica", quote(item.key));
    }
  }
  for (const WriteItem& item : old) {
    if (!remaining[item.key].empty())
      return str_format("key {} is gone, or fewer parts of it are here", quote(item.key));
  }
  return "the order of the keys is another";
}

/// What the plans are of which ranks propose the last ones.
const Bytes* last_plan(const SavePlanCache::Global* last, std::size_t rank, std::size_t ranks) {
  return last != nullptr && last->local_plans.size() == ranks ? &last->local_plans[rank] : nullptr;
}

/// Whether a rank writes everything that it has planned, in one piece each.
bool is_all_of(std::span<const AssignedItem> assigned, std::size_t planned) {
  std::uint32_t next = 0;
  return assigned.size() == planned && std::ranges::all_of(assigned, [&](const AssignedItem& item) {
           return item == AssignedItem{.item = next++};
         });
}

}  // namespace

SavePlanner::SavePlanner(SavePlanCache& cache, const PlannerOptions& options, bool use_replicas)
    : options_(options),
      use_replicas_(use_replicas),
      why_empty_(!options.cache   ? "planner.cache is off"
                 : cache.failed() ? "the save before failed"
                                  : "first save"),
      last_(cache.take()) {
  if (!options.cache) last_ = {};
}

LocalPlan SavePlanner::create_local_plan(SavePlan plan) const {
  Bytes encoded = encode_plan(plan);
  const std::uint8_t rules = encode_rules(options_, use_replicas_);
  if (last_.local && encoded == last_.local->plan) {
    Bytes proposal = encode_unchanged_proposal(rules, encoded);
    return {std::move(plan), std::move(proposal), "", std::move(encoded)};
  }
  std::string why = last_.local ? what_changed(last_.local->plan, plan) : why_empty_;
  Bytes proposal = encode_proposal(rules, encoded);
  return {std::move(plan), std::move(proposal), std::move(why), std::move(encoded)};
}

DecidedPlan SavePlanner::create_global_plan(std::span<const Bytes> proposals) const {
  const SavePlanCache::Global* const last = last_.global.get();
  const std::uint8_t rules = encode_rules(options_, use_replicas_);
  std::vector<bool> changed(proposals.size(), false);
  std::vector<ByteView> plans(proposals.size());
  DecidedPlan decision{.cache_hit = true};
  for (std::size_t rank = 0; rank < proposals.size(); ++rank) {
    with_context({.rank = static_cast<int>(rank)}, [&] {
      const Proposal proposal = decode_proposal(proposals[rank]);
      if (proposal.rules != rules) {
        throw CheckpointError(ErrorCode::kMismatch,
                              str_format("saves with other planner options ({}) than the "
                                         "coordinator ({}); all ranks need the same policy",
                                         describe_rules(proposal.rules), describe_rules(rules)));
      }
      if (!proposal.unchanged) {
        changed[rank] = true;
        decision.cache_hit = false;
        plans[rank] = proposal.content;
        return;
      }
      const Bytes* const remembered = last_plan(last, rank, proposals.size());
      if (remembered == nullptr || !refers_to(proposal, *remembered)) {
        throw CheckpointError(ErrorCode::kMismatch,
                              "proposes the plan of the last save, which is not the one that the "
                              "coordinator remembers; use one plan cache per rank, for saves of "
                              "the same ranks");
      }
      plans[rank] = *remembered;
    });
  }
  const bool decided_before = last != nullptr && last->plan && last->rules == rules;
  if (decision.cache_hit && decided_before) {
    decision.global = last_.global;
    decision.answers.assign(proposals.size(), encode_unchanged_answer());
    return decision;
  }
  if (decision.cache_hit && last != nullptr && last->plan) {
    decision.cache_hit = false;
    decision.why_planned = "other planner options";
  }
  GlobalPlanner planner({.kind = options_.kind,
                         .dedup = options_.effective_dedup(),
                         .use_replicas = use_replicas_,
                         .split_replicas = options_.split_replicas,
                         .validate = options_.validate});
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    planner.add(
        with_context({.rank = static_cast<int>(rank)}, [&] { return decode_plan(plans[rank]); }));
  }
  GlobalPlan plan = std::move(planner).finish();
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    const bool same = !changed[rank] && last->plan && last->plan->items[rank] == plan.items[rank];
    decision.answers.push_back(same ? encode_unchanged_answer() : encode_answer(plan.items[rank]));
  }
  auto global = std::make_shared<SavePlanCache::Global>();
  for (const ByteView local : plans) global->local_plans.emplace_back(local.begin(), local.end());
  global->plan = std::move(plan);
  global->rules = rules;
  decision.global = std::move(global);
  return decision;
}

FinalPlan SavePlanner::finish_plan(LocalPlan local, ByteView answer) const {
  std::optional<std::vector<AssignedItem>> items = decode_answer(answer, local.items);
  if (!items) {
    if (!local.why_planned.empty() || !last_.local || !last_.local->items)
      throw CheckpointError(ErrorCode::kCorrupt,
                            "the final plan from the coordinator is malformed");
    items = last_.local->items;
  }
  SavePlan final = is_all_of(*items, local.items.size()) ? std::move(local.items)
                                                         : final_plan(local.items, *items);
  return {std::move(final), {std::move(local.encoded), std::move(items)}};
}

SavePlanCache::Content SavePlanner::to_remember(
    SavePlanCache::Local local, std::shared_ptr<const SavePlanCache::Global> global) const {
  if (!options_.cache) return {};
  return {.local = std::move(local), .global = std::move(global)};
}

std::vector<CachedPlan> cached_plans(const SavePlanCache::Global& global) {
  std::vector<CachedPlan> plans;
  for (std::size_t rank = 0; rank < global.local_plans.size(); ++rank) {
    const Bytes& proposed = global.local_plans[rank];
    plans.push_back(
        {proposed, encode_plan(final_plan(decode_plan(proposed), global.plan->items[rank]))});
  }
  return plans;
}

}  // namespace dckpt
