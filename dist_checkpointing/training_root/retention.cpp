#include "dist_checkpointing/training_root/retention.h"

#include <algorithm>

namespace dckpt {

std::vector<std::uint64_t> iterations_to_delete(
    std::span<const std::uint64_t> iterations, std::uint64_t saved, const Retention& retention,
    std::span<const std::uint64_t> in_use, const std::function<bool(std::uint64_t)>& is_complete) {
  if (retention.keep_last == 0) return {};
  std::size_t end =
      static_cast<std::size_t>(std::ranges::upper_bound(iterations, saved) - iterations.begin());
  for (std::uint64_t complete = 0; end > 0 && complete < retention.keep_last; --end) {
    const std::uint64_t iteration = iterations[end - 1];
    if (iteration == saved || is_complete(iteration)) ++complete;
  }
  std::vector<std::uint64_t> to_delete;
  for (const std::uint64_t iteration : iterations.first(end)) {
    const bool stays = (retention.keep_every != 0 && iteration % retention.keep_every == 0) ||
                       std::ranges::find(in_use, iteration) != in_use.end();
    if (!stays) to_delete.push_back(iteration);
  }
  return to_delete;
}

}  // namespace dckpt
