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
  /// The reason why the last plan could not be reused: "first save", "key 'x' is new", …; empty if
  /// it was.
  std::string why_planned;
  Bytes encoded;  ///< `items`
};

/// The coordinator's plan of all ranks, and its answers.
struct DecidedPlan {
  std::shared_ptr<const SavePlanCache::Global> global{};
  std::vector<Bytes> answers{};  ///< one for each rank
  bool cache_hit = false;        ///< no rank's plan has changed, nor have the options
  std::string why_planned{};     ///< the reason otherwise, where it is not a rank's

  const GlobalPlan& plan() const { return global->plan; }
};

/// The plan that a rank executes.
struct FinalPlan {
  SavePlan items;  ///< items that this rank writes
  SavePlanCache::Local local;
};

/// The protocol by which a rank and the coordinator agree on the plan of one save: two messages per
/// rank, over any channel. Each step returns a value; only the cache's commit() remembers.
///
///   every rank    PlanAgreement planner(cache, options)
///                 takes the content of the cache: a planner that is dropped leaves it empty
///                 local = planner.create_local_plan(plan)
///                 its proposal is the plan, or a fingerprint if it is that of the last save
///   coordinator   decided = planner.create_global_plan(proposals)
///                 its answers list the items of each rank, or say "as last time"
///   every rank    final = planner.finish_plan(local, answer)
///   all           cache.commit(planner.to_remember(final.local, decided.global))
///                 once the save has succeeded everywhere
///
/// A rank compares its plan with the last one byte by byte, so a changed key, dtype, shape, box,
/// range or replica id is always detected; the fingerprint lets the coordinator check that both
/// remember the same plan. If all ranks propose their last plans, nothing is planned and the last
/// global plan is reused. If only some do, or the options have changed, everything is planned
/// again, and only final plans that differ are sent.
class PlanAgreement {
 public:
  /// If PlannerOptions::cache is off, nothing is reused or remembered. `use_replicas`: see
  /// GlobalPlanOptions.
  explicit PlanAgreement(SavePlanCache& cache, const PlannerOptions& options,
                         bool use_replicas = false);

  LocalPlan create_local_plan(SavePlan plan) const;

  /// Makes the plan of all ranks, on the coordinator only; `proposals` are in the order of ranks.
  /// Throws CheckpointError (mismatch) if the plans do not form a checkpoint, (corrupt) with the
  /// rank for a malformed proposal.
  DecidedPlan create_global_plan(std::span<const Bytes> proposals) const {
    return create_global_plan(proposals, Decision{});
  }

  /// The coordinator's decision if it does not follow the built-in rules.
  struct Decision {
    std::function<GlobalPlan(const LocalPlans& plans)> decide{};
    /// Text for everything but the local plans on which the decision depends: plans that were
    /// decided under another text are not reused. Without a text, they never are.
    std::optional<std::string> planner = "";
    bool compare_replicas = false;  ///< DecidedPlan::global is to have `replicas`
  };
  DecidedPlan create_global_plan(std::span<const Bytes> proposals, const Decision& decision) const;

  GlobalPlanOptions global_options() const;

  /// Throws CheckpointError (corrupt) for a malformed answer.
  FinalPlan finish_plan(LocalPlan local, ByteView answer) const;

  /// Returns the content to commit to the cache; `global` is null except on the coordinator.
  SavePlanCache::Content to_remember(
      SavePlanCache::Local local, std::shared_ptr<const SavePlanCache::Global> global = {}) const;

 private:
  PlannerOptions options_;
  bool use_replicas_;
  std::string why_empty_;  ///< the reason why nothing is remembered
  SavePlanCache::Content last_;
};

}  // namespace dckpt
