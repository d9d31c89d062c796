#include "mapping/planning/chunk_index.h"

#include <algorithm>
#include <numeric>
#include <optional>

namespace dckpt {
namespace {

constexpr int kScansBeforeSorting = 3;

bool overlaps(const Box& box, ShapeView offsets, ShapeView sizes) noexcept {
  for (std::size_t axis = 0; axis < offsets.size(); ++axis) {
    const std::int64_t first = std::max(offsets[axis], box.offsets[axis]);
    const std::int64_t last =
        std::min(offsets[axis] + sizes[axis], box.offsets[axis] + box.sizes[axis]);
    if (first >= last) return false;
  }
  return true;
}

}  // namespace

void ChunkIndex::find(const Box& box, std::vector<std::uint32_t>& found) {
  found.clear();
  if (scans_ <= kScansBeforeSorting && scans_++ == kScansBeforeSorting) sort();
  const Axis* best = nullptr;
  Window narrowest{0, chunks_.size()};
  for (const Axis& axis : axes_) {
    const Window candidates = window(axis, box);
    if (candidates.last - candidates.first >= narrowest.last - narrowest.first) continue;
    best = &axis;
    narrowest = candidates;
  }
  for (std::size_t i = narrowest.first; i < narrowest.last; ++i) {
    const std::uint32_t chunk = best != nullptr ? best->order[i] : static_cast<std::uint32_t>(i);
    if (overlaps(box, chunks_.offsets(chunk), chunks_.sizes(chunk))) found.push_back(chunk);
  }
  if (best != nullptr) std::sort(found.begin(), found.end());
}

void ChunkIndex::sort() {
  for (std::size_t axis = 0; axis < chunks_.dims(); ++axis) {
    Axis sorted{axis, std::vector<std::uint32_t>(chunks_.size()), {}, {}};
    const auto begin = [&](std::uint32_t chunk) { return chunks_.offsets(chunk)[axis]; };
    std::iota(sorted.order.begin(), sorted.order.end(), 0U);
    std::sort(sorted.order.begin(), sorted.order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return begin(a) < begin(b); });
    if (sorted.order.empty() || begin(sorted.order.front()) == begin(sorted.order.back()))
      continue;  // the tensor is not cut along this axis
    std::int64_t end = 0;
    for (const std::uint32_t chunk : sorted.order) {
      end = std::max(end, begin(chunk) + chunks_.sizes(chunk)[axis]);
      sorted.begins.push_back(begin(chunk));
      sorted.ends_so_far.push_back(end);
    }
    axes_.push_back(std::move(sorted));
  }
}

ChunkIndex::Window ChunkIndex::window(const Axis& axis, const Box& box) {
  const std::int64_t begin = box.offsets[axis.axis];
  const std::int64_t end = begin + box.sizes[axis.axis];
  const auto first = std::upper_bound(axis.ends_so_far.begin(), axis.ends_so_far.end(), begin) -
                     axis.ends_so_far.begin();
  const auto last =
      std::lower_bound(axis.begins.begin(), axis.begins.end(), end) - axis.begins.begin();
  return {static_cast<std::size_t>(std::min(first, last)), static_cast<std::size_t>(last)};
}

}  // namespace dckpt
