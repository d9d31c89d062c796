#include "dist_checkpointing/training_root/retention.h"

#include <algorithm>
#include <string>

#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

bool is_named(std::span<const std::string> patterns, std::uint64_t iteration) {
  const std::string number = std::to_string(iteration), name = iteration_directory(iteration);
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return glob_match(pattern, number) || glob_match(pattern, name);
  });
}

}  // namespace

std::vector<std::uint64_t> iterations_to_delete(
    std::span<const std::uint64_t> iterations, std::uint64_t saved, const Retention& retention,
    std::span<const std::uint64_t> in_use, const std::function<bool(std::uint64_t)>& is_sound) {
  if (retention.keep_last == 0) return {};
  std::size_t end =
      static_cast<std::size_t>(std::ranges::upper_bound(iterations, saved) - iterations.begin());
  for (std::uint64_t sound = 0; end > 0 && sound < retention.keep_last; --end)
    if (is_sound(iterations[end - 1])) ++sound;
  std::vector<std::uint64_t> to_delete;
  for (const std::uint64_t iteration : iterations.first(end)) {
    const bool stays = (retention.keep_every != 0 && iteration % retention.keep_every == 0) ||
                       std::ranges::find(in_use, iteration) != in_use.end() ||
                       is_named(retention.keep, iteration);
    if (!stays) to_delete.push_back(iteration);
  }
  return to_delete;
}

}  // namespace dckpt
