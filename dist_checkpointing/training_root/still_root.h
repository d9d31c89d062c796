#pragma once

#include <string>

#include "mapping/base/error.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// Returns what a job that saves in a training root changes there: the iterations and the tracker.
/// The same text if they are the same. Throws CheckpointError (io).
std::string appearance(const Location& root);

/// Looks at a training root, and looks again if that failed, or found something that is not fine,
/// while a job was saving and removing checkpoints there. Each look may find what the tracker named
/// before, or a directory that is gone by now.
template <typename Look, typename IsFine>
auto look_at_still_root(const Location& root, const Look& look, const IsFine& is_fine) {
  constexpr int kMostLooks = 5;
  for (int looks = 1;; ++looks) {
    const std::string before = appearance(root);
    try {
      auto found = look();
      if (is_fine(found) || looks == kMostLooks || appearance(root) == before) return found;
    } catch (const CheckpointError&) {
      if (looks == kMostLooks || appearance(root) == before) throw;
    }
  }
}

}  // namespace dckpt
