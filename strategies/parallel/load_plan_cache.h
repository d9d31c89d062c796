#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

struct ExchangePlan;

/// The plan that a rank remembers between loads in which ranks share the reading
/// (LoadOptions::parallel), like SavePlanCache between saves. Each rank keeps one cache and passes
/// it to every load. If all ranks request the same parts of tensors as last time, and these are cut
/// into the same chunks, they exchange a few bytes instead of lists and reuse the plan; otherwise
/// everything is planned again. A rank compares its request byte by byte.
///
/// Used by one thread at a time. It takes the memory of the last load's lists. Keeping it is always
/// correct: a load of something else replaces its content. A cache that has been moved from is as
/// good as new.
class LoadPlanCache {
 public:
  // Internal content, see load_plan_cache_content.h.
  struct Key;
  struct Access;

  LoadPlanCache() noexcept;
  ~LoadPlanCache();
  LoadPlanCache(LoadPlanCache&& other) noexcept;
  LoadPlanCache& operator=(LoadPlanCache&& other) noexcept;

  /// Returns whether the last load reused the plan of the one before.
  bool cache_hit() const noexcept;
  /// Returns what was different on this rank if the last load planned again; empty if it was
  /// another rank.
  const std::string& why_planned() const noexcept;

  // The following is called by loads.

  /// Begins a load, which may end before planning. `why` is why_planned() until then.
  void begin(std::string why);
  bool is_checked(const Access& access) const;
  void remember_checked(Access access);
  /// Returns why no plan is known for a key.
  [[nodiscard]] std::string why_unknown(const Key& key) const;
  /// Returns the number that all ranks have given to the remembered plan; 0 if there is none, or
  /// not for this key.
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
