#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/save/global_plan.h"

namespace DCKPT_API dckpt {

/// What a rank remembers from save to save, so that a save of the same structure exchanges
/// fingerprints instead of plans. Keep one per rank, used by one thread at a time, and pass it to
/// every save. It is safe to keep it: another structure or other options are planned anew, and a
/// save of other ranks throws (mismatch) once, after which the cache is empty.
class SavePlanCache {
 public:
  /// Of this rank.
  struct Local {
    Bytes plan;  ///< encoded
    /// What it writes of it; empty if only the coordinator knows, who then has to say.
    std::optional<std::vector<AssignedItem>> items{};
  };
  /// Of the coordinator.
  struct Global {
    std::vector<Bytes> local_plans;    ///< of all ranks, encoded
    std::optional<GlobalPlan> plan{};  ///< decided from them by `rules`
    std::uint8_t rules = 0;            ///< see encode_rules()
  };
  /// Plans of a save that has succeeded, or that a checkpoint stores.
  struct Content {
    std::optional<Local> local{};
    std::shared_ptr<const Global> global{};
  };

  /// Starts from plans that a checkpoint stores (PlannerOptions::keep_plans): `own` of this rank
  /// and, on the coordinator, `all` of every rank, in a job of as many ranks. All ranks or none
  /// must call it. The bytes need not be valid: they are only compared until they match what a rank
  /// plans.
  void seed(Bytes own, std::vector<Bytes> all = {}) {
    content_ = {.local = Local{std::move(own)}};
    if (!all.empty())
      content_.global = std::make_shared<const Global>(Global{.local_plans = std::move(all)});
    failed_ = false;
  }

  /// For a save: hands out the plans. Until commit(), nothing is remembered, so all ranks forget a
  /// save that fails without being told.
  Content take() {
    failed_ = true;
    return std::exchange(content_, {});
  }
  void commit(Content content) {
    content_ = std::move(content);
    failed_ = false;
  }
  /// Whether the plans were taken by a save that has not succeeded.
  bool failed() const noexcept { return failed_; }

 private:
  Content content_;
  bool failed_ = false;
};

}  // namespace dckpt
