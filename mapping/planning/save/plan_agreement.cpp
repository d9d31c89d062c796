#include "mapping/planning/save/plan_agreement.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/planning/save/messages.h"

namespace dckpt {
namespace {

/// Describes how `plan` differs from the previous one.
std::string what_changed(ByteView before, const SavePlan& plan) {
  const SavePlan old = decode_plan(before);
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

/// Returns whether a rank writes everything that it has planned, in one piece each.
bool is_all_of(std::span<const AssignedItem> assigned, std::size_t planned) {
  std::uint32_t next = 0;
  return assigned.size() == planned && std::ranges::all_of(assigned, [&](const AssignedItem& item) {
           return item == AssignedItem{.item = next++};
         });
}

/// The plans that ranks propose, by rank.
struct ProposedPlans {
  std::vector<ByteView> plans;
  std::vector<Fingerprint> fingerprints;
  std::vector<bool> remembered;  ///< the rank remembers its items of this plan
  bool unchanged = true;         ///< all plans are those of the last save
};

ProposedPlans read_proposals(std::span<const Bytes> proposals, std::uint8_t rules,
                             const SavePlanCache::Global* last) {
  ProposedPlans all{.plans = std::vector<ByteView>(proposals.size()),
                    .fingerprints = std::vector<Fingerprint>(proposals.size()),
                    .remembered = std::vector<bool>(proposals.size())};
  for (std::size_t rank = 0; rank < proposals.size(); ++rank) {
    with_context({.rank = static_cast<int>(rank)}, [&] {
      const Proposal proposal = decode_proposal(proposals[rank]);
      if (proposal.rules != rules) {
        throw_error(ErrorCode::kMismatch,
                    "saves with other planner options ({}) than the "
                    "coordinator ({}); all ranks need the same policy",
                    describe_rules(proposal.rules), describe_rules(rules));
      }
      if (!proposal.unchanged) {
        all.unchanged = false;
        all.plans[rank] = proposal.content;
        all.fingerprints[rank] = fingerprint_of(proposal.content);
        return;
      }
      if (last == nullptr || last->fingerprints.size() != proposals.size() ||
          !refers_to(proposal, last->fingerprints[rank])) {
        throw_error(ErrorCode::kMismatch,
                    "proposes the plan of the last save, which is not the one that the "
                    "coordinator remembers; use one plan cache per rank, for saves of "
                    "the same ranks");
      }
      all.remembered[rank] = true;
      all.fingerprints[rank] = last->fingerprints[rank];
      all.plans[rank] = last->local_plans[rank];
    });
  }
  return all;
}

}  // namespace

PlanAgreement::PlanAgreement(SavePlanCache& cache, const PlannerOptions& options, bool use_replicas)
    : options_(options),
      use_replicas_(use_replicas),
      why_empty_(options.cache ? cache.why_empty() : "planner.cache is off"),
      last_(cache.take()) {
  if (!options.cache) last_ = {};
}

LocalPlan PlanAgreement::create_local_plan(SavePlan plan) const {
  Bytes encoded = encode_plan(plan);
  const std::uint8_t rules = encode_rules(options_, use_replicas_);
  if (last_.local && encoded == last_.local->plan) {
    Bytes proposal = encode_unchanged_proposal(rules, fingerprint_of(encoded));
    return {std::move(plan), std::move(proposal), "", std::move(encoded)};
  }
  std::string why = last_.local ? what_changed(last_.local->plan, plan) : why_empty_;
  Bytes proposal = encode_proposal(rules, encoded);
  return {std::move(plan), std::move(proposal), std::move(why), std::move(encoded)};
}

GlobalPlanOptions PlanAgreement::global_options() const {
  return {.kind = options_.kind,
          .dedup = options_.effective_dedup(),
          .use_replicas = use_replicas_,
          .split_replicas = options_.split_replicas,
          .validate = options_.validate};
}

DecidedPlan PlanAgreement::create_global_plan(std::span<const Bytes> proposals,
                                              const Decision& by) const {
  const SavePlanCache::Global* const last = last_.global.get();
  const std::uint8_t rules = encode_rules(options_, use_replicas_);
  ProposedPlans proposed = read_proposals(proposals, rules, last);
  DecidedPlan decision{.cache_hit = proposed.unchanged};
  const auto answer_all = [&](const GlobalPlan& plan) {
    for (std::size_t rank = 0; rank < proposals.size(); ++rank) {
      const bool same = proposed.remembered[rank] &&
                        (&plan == &last->plan || last->plan.items[rank] == plan.items[rank]);
      decision.answers.push_back(same ? encode_unchanged_answer()
                                      : encode_answer(plan.items[rank]));
    }
  };
  const bool same_planner = last != nullptr && by.planner && last->planner == *by.planner;
  const bool decided_before = same_planner && last->rules == rules;
  const LocalPlans of_ranks{std::span<const ByteView>(proposed.plans)};
  if (decision.cache_hit && decided_before) {
    decision.global = last_.global;
    if (by.compare_replicas && !last->replicas) {
      auto global = std::make_shared<SavePlanCache::Global>(*last);
      global->replicas = find_replicas(of_ranks);
      decision.global = std::move(global);
    }
    answer_all(last->plan);
    return decision;
  }
  if (decision.cache_hit) {
    decision.cache_hit = false;
    decision.why_planned = !by.planner     ? "the planner's plans are not to be reused"
                           : !same_planner ? "the planner changed, or an input of its plans did"
                                           : "other planner options";
  }
  GlobalPlan plan =
      by.decide ? by.decide(of_ranks) : create_default_global_save_plan(of_ranks, global_options());
  answer_all(plan);
  auto global = std::make_shared<SavePlanCache::Global>();
  global->fingerprints = std::move(proposed.fingerprints);
  for (const ByteView local : proposed.plans)
    global->local_plans.emplace_back(local.begin(), local.end());
  global->plan = std::move(plan);
  if (by.compare_replicas) global->replicas = find_replicas(of_ranks);
  global->rules = rules;
  global->planner = by.planner.value_or("(not to be reused)");
  decision.global = std::move(global);
  return decision;
}

FinalPlan PlanAgreement::finish_plan(LocalPlan local, ByteView answer) const {
  std::optional<std::vector<AssignedItem>> items = decode_answer(answer, local.items);
  if (!items) {
    if (!local.why_planned.empty() || !last_.local)
      throw_error(ErrorCode::kCorrupt, "the final plan from the coordinator is malformed");
    items = last_.local->items;
  }
  SavePlan final = is_all_of(*items, local.items.size()) ? std::move(local.items)
                                                         : final_plan(local.items, *items);
  return {std::move(final), {std::move(local.encoded), *std::move(items)}};
}

SavePlanCache::Content PlanAgreement::to_remember(
    SavePlanCache::Local local, std::shared_ptr<const SavePlanCache::Global> global) const {
  if (!options_.cache) return {};
  return {.local = std::move(local), .global = std::move(global)};
}

}  // namespace dckpt
