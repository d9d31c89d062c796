#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/planning/global_plan.h"

namespace dckpt {

/// How a rank and the coordinator agree on a plan, and what they remember of it until the next
/// save: two messages per rank, over any channel.
///
///   every rank    proposal = planner.create_local_plan(plan)
///                 its plan, or only a fingerprint if it is the one that was accepted last time
///   coordinator   answers  = planner.create_global_plan(proposals)
///                 what each rank writes, or "as last time"
///   every rank    final    = planner.finish_plan(answer)
///   all           planner.commit()
///                 once the save has succeeded everywhere; planner.forget() if not
///
/// A rank compares its plan with the accepted one byte by byte, so a changed key, dtype, shape,
/// box, range, replica id or option is always detected; the fingerprint lets the coordinator check
/// that both remember the same plan. If all ranks propose their last plans, nothing is planned and
/// the last metadata is reused, without places. If only some do, everything is planned again, and
/// only final plans that differ are sent.
///
/// A new job can start from the plans that a checkpoint stores (PlannerOptions::keep_plans,
/// seed_planner() in seed_planner.h). They take the place of the last plans, and the coordinator
/// plans from them if all ranks propose the same. A plan is therefore never taken from a file, but
/// made from what every rank holds.
///
/// One object per rank, used by one thread at a time. If PlannerOptions::cache is off, it remembers
/// nothing.
class SavePlanner {
 public:
  /// `use_replicas`: see GlobalPlanOptions.
  explicit SavePlanner(const PlannerOptions& options, bool use_replicas = false);

  Bytes create_local_plan(SavePlan plan);

  /// Coordinator only: proposals in the order of ranks. Throws CheckpointError (mismatch) if the
  /// plans do not form a checkpoint, (corrupt) with the rank for a malformed proposal.
  std::vector<Bytes> create_global_plan(std::span<const Bytes> proposals);

  /// What this rank writes. Throws CheckpointError (corrupt) for a malformed answer.
  const SavePlan& finish_plan(ByteView answer);

  /// Coordinator only: the plan that was decided, for set_places().
  GlobalPlan& global_plan() noexcept { return global_; }
  /// Coordinator only: whether the last create_global_plan() found nothing changed.
  bool cache_hit() const noexcept { return hit_; }
  /// Why create_local_plan() could not reuse the last plan: "first save", "key 'x' is new", …;
  /// empty if it did.
  const std::string& why_planned() const noexcept { return why_planned_; }

  /// Coordinator only, after create_global_plan(): the plans of all ranks, to be kept in the
  /// checkpoint.
  std::vector<KeptPlan> kept_plans() const;
  /// Forgets everything and takes plans stored in a checkpoint as the last ones: `own` of this rank
  /// and, on the coordinator, `all` of every rank, in a job of as many ranks. All ranks or none
  /// must call it. The bytes need not be valid: they are only compared until they match what a rank
  /// proposes.
  void seed(Bytes own, std::vector<Bytes> all = {});

  void commit();
  /// Resets the planner, as if nothing had been saved.
  void forget();

 private:
  /// What the coordinator knows about a rank.
  struct Known {
    Bytes plan;  ///< encoded
    /// That it remembers too; empty if it does not.
    std::optional<std::vector<AssignedItem>> items{};
  };

  PlannerOptions options_;
  bool use_replicas_;

  SavePlan plan_;  ///< proposed
  SavePlan final_;
  Bytes encoded_;                                     ///< of plan_
  std::optional<std::vector<AssignedItem>> items_{};  ///< of final_
  std::string why_planned_{};
  bool failed_ = false;  ///< nothing is remembered because a save failed
  /// `encoded_` and `items_` are those of a save that succeeded, or of a seed.
  bool committed_ = false;

  std::vector<Known> known_;
  GlobalPlan global_;
  bool planned_ = false;  ///< global_ is that of known_
  bool hit_ = false;
};

}  // namespace dckpt
