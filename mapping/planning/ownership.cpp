#include "mapping/planning/ownership.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::string_view kIndent = "\n      ";

/// Returns the only axis along which the region does not span the tensor; nothing if there are
/// several, since the worst of them cannot be told.
std::optional<std::size_t> differing_axis(const Box& region, ShapeView size) {
  std::optional<std::size_t> found;
  for (std::size_t axis = 0; axis < size.size(); ++axis) {
    if (region.sizes[axis] == size[axis]) continue;
    if (found) return std::nullopt;
    found = axis;
  }
  return found;
}

std::string padded(const std::string& text, std::size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 0, ' ');
}

std::string likely_cause(const CoverageProblem& problem, const BoxList& boxes,
                         std::span<const RankRegion> touching) {
  const auto stored = [](const RankRegion& holding) { return holding.stored; };
  if (problem.code == FindingCode::kElementsMissing) {
    if (!touching.empty() && std::none_of(touching.begin(), touching.end(), stored))
      return "only replicas hold it; one of them needs a replica id of zeros";
    return "";
  }
  std::vector<const RankRegion*> writers;
  for (const RankRegion& holding : touching) {
    if (holding.stored) writers.push_back(&holding);
  }
  const bool same = writers.size() > 1 && boxes[writers[0]->box] == boxes[writers[1]->box];
  return same ? "the same part twice; all but one need another replica id" : "";
}

}  // namespace

std::string ownership_table(ShapeView size, const BoxList& boxes,
                            std::span<const RankRegion> holdings, const CoverageProblem& problem) {
  if (!problem.region) return "";
  std::string text(kIndent);
  text += (problem.code == FindingCode::kElementsOverlap ? "overlap " : "hole ") +
          to_string(*problem.region);
  if (const auto axis = differing_axis(*problem.region, size))
    text += ", probably cut wrongly along axis " + std::to_string(*axis);

  std::vector<RankRegion> order(holdings.begin(), holdings.end());
  const auto others =
      std::stable_partition(order.begin(), order.end(), [&](const RankRegion& holding) {
        return intersect(boxes[holding.box], *problem.region).has_value();
      });
  const std::string cause = likely_cause(
      problem, boxes, {order.data(), static_cast<std::size_t>(others - order.begin())});
  if (!cause.empty()) text += "; " + cause;

  const std::size_t shown = std::min(order.size(), kShownHoldings);
  std::size_t width = 4;
  for (std::size_t i = 0; i < shown; ++i)
    width = std::max(width, std::to_string(order[i].rank).size());
  if (shown > 0) text += str_format("{}{}  holds", kIndent, padded("rank", width));
  for (std::size_t i = 0; i < shown; ++i) {
    text +=
        str_format("{}{}  {}{}", kIndent, padded(std::to_string(order[i].rank), width),
                   to_string(boxes[order[i].box]), order[i].stored ? "" : "  replica, not stored");
  }
  if (order.size() > shown)
    text += str_format("{}and {} more", kIndent, grouped(order.size() - shown));
  return text;
}

}  // namespace dckpt
