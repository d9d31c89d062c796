#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

struct ExchangePlan;

/// What a rank remembers between loads in which ranks share the reading (LoadOptions::parallel), as
/// SavePlanCache is between saves. Each rank keeps one and passes it to every load. If all ranks
/// request the same parts of tensors as last time, and these are cut into the same chunks, they
/// exchange a few bytes instead of lists and reuse the plan; otherwise everything is planned again.
/// A rank compares its request byte by byte.
///
/// One thread at a time. It takes the memory of the last load's lists. Keeping it is always
/// correct: a load of something else replaces it. One that has been moved from is as good as new.
class LoadPlanCache {
 public:
  // What is remembered: load_plan_cache_content.h, which is not for users.
  struct Key;
  struct Access;

  LoadPlanCache() noexcept;
  ~LoadPlanCache();
  LoadPlanCache(LoadPlanCache&& other) noexcept;
  LoadPlanCache& operator=(LoadPlanCache&& other) noexcept;

  /// Whether the last load reused the plan of the one before.
  bool cache_hit() const noexcept;
  /// Otherwise, what was different on this rank; empty if it was another rank.
  const std::string& why_planned() const noexcept;

  // For a load.

  /// A load begins, which may not come to plan.
  void begin(std::string why);
  bool is_checked(const Access& access) const;
  void remember_checked(Access access);
  /// Why no plan is known for a key.
  [[nodiscard]] std::string why_unknown(const Key& key) const;
  /// The number that all ranks have given to the plan that is remembered; 0 if none is, or not for
  /// this key.
  std::uint64_t known(const Key& key) const;
  std::shared_ptr<const ExchangePlan> plan() const noexcept;
  void hit();
  void miss(std::string why);
  void remember(Key key, std::uint64_t number, std::shared_ptr<const ExchangePlan> plan);

 private:
  struct State;
  State& state();

  std::unique_ptr<State> state_;  ///< null: as good as new
};

}  // namespace dckpt
