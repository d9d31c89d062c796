#include "tools/dckpt/render/resume_report.h"

#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/error.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {

bool is_training_root(const std::string& path) {
  const Location root = path;
  if (!root.is_directory()) return false;
  return (root / kTrackerFile).stat() || !list_iterations(root).empty();
}

LatestChoice resume_choice(const std::string& root, const StrategySpec& strategy) {
  try {
    return choose_latest(root, strategy);
  } catch (const CheckpointError& error) {
    return {.checkpoint = std::nullopt, .why = {}, .passed_over = {error.what()}};
  }
}

std::string resume_text(const LatestChoice& choice) {
  if (!choice.checkpoint) return "nothing to resume from";
  return str_format("{} ({})", shown(choice.checkpoint->directory), choice.why);
}

}  // namespace dckpt::tool
