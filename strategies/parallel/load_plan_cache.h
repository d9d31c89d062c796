#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "configs/options.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/planning/planner_options.h"

namespace DCKPT_API dckpt {

struct ExchangePlan;

/// What a rank remembers between loads in which ranks share the reading (LoadOptions::parallel), as
/// SavePlanCache is between saves. Each rank keeps one and passes it to every load. If all ranks
/// request the same parts of tensors as last time, and these are cut into the same chunks, they
/// exchange a few bytes instead of lists and reuse the plan; otherwise everything is planned again.
/// A rank compares its request byte by byte.
///
/// One thread at a time. It takes the memory of the last load's lists. Keeping it is always
/// correct: a load of something else replaces it.
class LoadPlanCache {
 public:
  /// Whether the last load reused the plan of the one before.
  bool cache_hit() const noexcept { return hit_; }
  /// Otherwise, what was different on this rank; empty if it was another rank.
  const std::string& why_planned() const noexcept { return why_; }
  /// A load begins, which may not come to plan.
  void begin(std::string why) {
    hit_ = false;
    why_ = std::move(why);
  }

  /// What must be the same for a plan to be used again.
  struct Key {
    Bytes wanted;              ///< of this rank
    std::uint64_t layout = 0;  ///< layout_of the checkpoint
    Exchange exchange = Exchange::kAuto;
    std::uint64_t budget = 0;
    int rank = 0;
    int ranks = 0;

    friend bool operator==(const Key&, const Key&) = default;
  };

  /// What this rank has asked for, as a plan, when the ranks' shares were last found to cover each
  /// key.
  struct Access {
    Bytes request{};
    PlannerKind kind = PlannerKind::kMegatron;
    int rank = 0;
    int ranks = 0;

    friend bool operator==(const Access&, const Access&) = default;
  };
  bool is_checked(const Access& access) const { return checked_ && access == *checked_; }
  void remember_checked(Access access) { checked_ = std::move(access); }

  /// Why no plan is known for a key.
  std::string why_unknown(const Key& key) const {
    if (!plan_) return "first load";
    if (key.ranks != key_.ranks || key.rank != key_.rank) return "there are other ranks";
    if (key.wanted != key_.wanted) return "other parts are requested";
    if (key.layout != key_.layout) return "the checkpoint is cut into other chunks";
    return "load.parallel.exchange or load.staging is another";
  }

  /// The number that all ranks have given to the plan that is remembered; 0 if none is, or not for
  /// this key.
  std::uint64_t known(const Key& key) const { return plan_ && key == key_ ? number_ : 0; }
  const std::shared_ptr<const ExchangePlan>& plan() const noexcept { return plan_; }
  void hit() noexcept { hit_ = true; }
  void miss(std::string why) { why_ = std::move(why); }
  void remember(Key key, std::uint64_t number, std::shared_ptr<const ExchangePlan> plan) {
    hit_ = false;
    key_ = std::move(key);
    number_ = number;
    plan_ = std::move(plan);
  }

 private:
  std::optional<Access> checked_;
  Key key_;
  std::uint64_t number_ = 0;
  std::shared_ptr<const ExchangePlan> plan_;
  bool hit_ = false;
  std::string why_{};
};

}  // namespace dckpt
