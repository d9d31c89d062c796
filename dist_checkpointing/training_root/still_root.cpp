#include "dist_checkpointing/training_root/still_root.h"

#include "dist_checkpointing/open/tracker.h"

namespace dckpt {

std::string appearance(const Location& root) {
  if (!root.stat()) return {};
  std::string text;
  for (const FileInfo& entry : root.directory()->list("")) {
    if (parse_iteration_directory(entry.name) || entry.name == kReleaseDirectory)
      text += entry.name + "\n";
    if (entry.name == kTrackerFile || entry.name == kBridgeTrackerFile)
      text += entry.name + " " + std::to_string(entry.modified) + "\n";
  }
  return text;
}

}  // namespace dckpt
