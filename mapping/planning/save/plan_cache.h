#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/base/fingerprint.h"
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
    Fingerprint fingerprint;  ///< of the encoded plan
    Bytes plan{};             ///< encoded; empty if only its fingerprint is known
    /// What it writes of it; empty if only the coordinator knows, who then has to say.
    std::optional<std::vector<AssignedItem>> items{};
  };
  /// Of the coordinator.
  struct Global {
    std::vector<Fingerprint> fingerprints;  ///< of the encoded local plans of all ranks
    std::vector<Bytes> local_plans{};       ///< encoded; empty if only the fingerprints are known
    std::optional<GlobalPlan> plan{};       ///< decided from them by `rules`
    std::uint8_t rules = 0;                 ///< see encode_rules()
    std::string planner{};                  ///< and by this planner: PlanAgreement::Decision
  };
  /// Plans of a save that has succeeded, or that a checkpoint stores.
  struct Content {
    std::optional<Local> local{};
    std::shared_ptr<const Global> global{};
  };

  /// Starts from what a checkpoint stores of plans (KeepPlans::kFile): the fingerprint of this
  /// rank's and, on the coordinator alone, `all`, in a job of as many ranks. All ranks or none must
  /// call it.
  void seed(const Fingerprint& own, std::shared_ptr<const Global> all = {}) {
    commit({.local = Local{own}, .global = std::move(all)});
  }
  /// Starts from nothing; the next save says `why`.
  void clear(std::string why) {
    content_ = {};
    why_empty_ = std::move(why);
  }

  /// For a save: hands out the plans. Until commit(), nothing is remembered, so all ranks forget a
  /// save that fails without being told.
  Content take() {
    why_empty_ = "the save before failed";
    return std::exchange(content_, {});
  }
  void commit(Content content) {
    content_ = std::move(content);
    why_empty_ = "first save";
  }
  bool empty() const noexcept { return !content_.local && !content_.global; }
  /// Of an empty cache.
  const std::string& why_empty() const noexcept { return why_empty_; }

 private:
  Content content_;
  std::string why_empty_ = "first save";
};

}  // namespace dckpt
