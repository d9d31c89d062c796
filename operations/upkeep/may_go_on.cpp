#include "operations/upkeep/may_go_on.h"

#include "dist_checkpointing/training_root/unfinished_work.h"

namespace dckpt {

bool changed_lately(std::int64_t modified) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::nanoseconds(modified) > now - kSettled;
}

bool may_go_on(const Location& root, const std::string& directory, std::int64_t modified) {
  bool claimed = false;
  for (const UnfinishedWork& mark : list_marks(root, directory)) {
    if (mark.purpose != "claim") continue;
    if (mark.state != UnfinishedWork::State::kEnded) return true;
    claimed = true;
  }
  return !claimed && changed_lately(modified);
}

}  // namespace dckpt
