#pragma once

#include <memory>
#include <string>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The plans that a rank remembers from save to save, so that a save of the same structure
/// exchanges fingerprints instead of plans. Keep one per rank, used by one thread at a time, and
/// pass it to every save. It is safe to keep it: another structure or other options are planned
/// from scratch, and a save of other ranks throws (mismatch) once, after which the cache is empty.
/// A cache that has been moved from is as good as new.
class SavePlanCache {
 public:
  // The content: plan_cache_content.h, which is not for users.
  struct Local;
  struct Global;
  struct Content;

  SavePlanCache() noexcept;
  ~SavePlanCache();
  SavePlanCache(SavePlanCache&& other) noexcept;
  SavePlanCache& operator=(SavePlanCache&& other) noexcept;

  /// Starts from nothing; the next save gives `why` as the reason.
  void clear(std::string why);
  bool empty() const noexcept;

  // The functions below are for saves.

  /// Returns the plans and forgets them until commit(), so all ranks forget a save that fails
  /// without being told.
  Content take();
  void commit(Content content);
  /// The reason why the cache is empty.
  const std::string& why_empty() const noexcept;
  /// Returns another cache that begins with the content of this one.
  SavePlanCache fork() const;

 private:
  struct State;
  State& state();

  std::unique_ptr<State> state_;  ///< null: as good as new
};

}  // namespace dckpt
