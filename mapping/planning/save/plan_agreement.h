#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/planning/metadata.h"
#include "mapping/planning/planner_options.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/local_plan.h"
#include "mapping/planning/save/local_plans.h"
#include "mapping/planning/save/plan_cache_content.h"

namespace dckpt {

/// A rank's plan and its proposal to the coordinator.
struct LocalPlan {
  SavePlan items;
  Bytes proposal;  ///< for the coordinator
  /// Why the last plan could not be reused: "first save", "key 'x' is new", …; empty if it was.
  std::string why_planned;
  Bytes encoded;              ///< `items`
  Fingerprint fingerprint{};  ///< of `encoded`
  bool asked = false;         ///< for the plan itself, as which it has been proposed again
};

/// The coordinator's plan of all ranks, and its answers.
struct DecidedPlan {
  /// Null: plans are needed that only their ranks know; the answers ask all ranks for them.
  std::shared_ptr<const SavePlanCache::Global> global{};
  std::vector<Bytes> answers{};  ///< one for each rank
  bool cache_hit = false;        ///< no rank's plan has changed, nor have the options
  std::string why_planned{};     ///< else, where the reason is not a rank's

  const GlobalPlan& plan() const { return *global->plan; }
};

/// What a rank executes.
struct FinalPlan {
  SavePlan items;  ///< what this rank writes
  SavePlanCache::Local local;
};

/// How a rank and the coordinator agree on the plan of one save: two messages per rank, over any
/// channel. Each step returns a value; only the cache's commit() remembers.
///
///   every rank    PlanAgreement planner(cache, options)
///                 takes what the cache holds: a planner that is dropped leaves it empty
///                 local = planner.create_local_plan(plan)
///                 its proposal is the plan, or a fingerprint if it is that of the last save
///   coordinator   decided = planner.create_global_plan(proposals)
///                 its answers say what each rank writes, or "as last time"
///                 or "send your plan", if it knows fingerprints alone and must plan
///   every rank    if (planner.propose_again(local, answer)): back to the coordinator, once
///                 final = planner.finish_plan(local, answer)
///   all           cache.commit(planner.to_remember(final.local, decided.global))
///                 once the save has succeeded everywhere
///
/// A rank compares its plan with the last one byte by byte, so a changed key, dtype, shape, box,
/// range or replica id is always detected; the fingerprint lets the coordinator check that both
/// remember the same plan. If all ranks propose their last plans, nothing is planned and the last
/// global plan is reused. If only some do, or the options have changed, everything is planned
/// again, and only final plans that differ are sent.
///
/// A new job can start from what a checkpoint stores (PlannerOptions::keep_plans,
/// SavePlanCache::seed) in place of the last plans: their fingerprints, and the decisions that were
/// made from these plans.
class PlanAgreement {
 public:
  /// If PlannerOptions::cache is off, nothing is reused or remembered. `use_replicas`: see
  /// GlobalPlanOptions.
  explicit PlanAgreement(SavePlanCache& cache, const PlannerOptions& options,
                         bool use_replicas = false);

  LocalPlan create_local_plan(SavePlan plan) const;

  /// Coordinator only: proposals in the order of ranks. Throws CheckpointError (mismatch) if the
  /// plans do not form a checkpoint, (corrupt) with the rank for a malformed proposal.
  DecidedPlan create_global_plan(std::span<const Bytes> proposals) const {
    return create_global_plan(proposals, Decision{});
  }

  /// How the coordinator decides if not by the built-in rules.
  struct Decision {
    std::function<GlobalPlan(const LocalPlans& plans)> decide{};
    /// What it depends on besides the local plans: plans that were decided under another text are
    /// not reused. None: they never are.
    std::optional<std::string> planner = "";
  };
  DecidedPlan create_global_plan(std::span<const Bytes> proposals, const Decision& decision) const;

  GlobalPlanOptions global_options() const;

  /// Whether the coordinator asks for the plan, which `local.proposal` then is. Throws
  /// CheckpointError (corrupt) if it asks twice.
  bool propose_again(LocalPlan& local, ByteView answer) const;

  /// Throws CheckpointError (corrupt) for a malformed answer.
  FinalPlan finish_plan(LocalPlan local, ByteView answer) const;

  /// What to commit to the cache; `global` is null except on the coordinator.
  SavePlanCache::Content to_remember(
      SavePlanCache::Local local, std::shared_ptr<const SavePlanCache::Global> global = {}) const;

 private:
  PlannerOptions options_;
  bool use_replicas_;
  std::string why_empty_;  ///< why nothing is remembered
  SavePlanCache::Content last_;
};

}  // namespace dckpt
