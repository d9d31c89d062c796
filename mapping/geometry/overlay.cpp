#include "mapping/geometry/overlay.h"

#include <algorithm>
#include <utility>

namespace dckpt {
namespace {

class OverlayCutter {
 public:
  explicit OverlayCutter(const BoxList& boxes)
      : boxes_(boxes), region_{Shape(boxes.dims(), 0), Shape(boxes.dims(), 0)} {}

  std::vector<OverlayPart> parts() {
    std::vector<std::uint32_t> members;
    for (std::uint32_t i = 0; i < boxes_.size(); ++i) {
      if (numel(boxes_.sizes(i)) > 0) members.push_back(i);
    }
    if (!members.empty()) cut(0, std::move(members));
    return std::move(parts_);
  }

 private:
  std::int64_t begin(std::uint32_t box, std::size_t axis) const {
    return boxes_.offsets(box)[axis];
  }
  std::int64_t end(std::uint32_t box, std::size_t axis) const {
    return begin(box, axis) + boxes_.sizes(box)[axis];
  }

  /// Cuts members, all of which span the region on the axes before `axis`, into slabs wherever one
  /// of them begins or ends. The depth is the number of axes.
  void cut(std::size_t axis, std::vector<std::uint32_t> members) {
    if (axis == boxes_.dims()) {
      std::sort(members.begin(), members.end());
      parts_.push_back({region_, std::move(members)});
      return;
    }
    std::vector<std::int64_t> cuts;
    for (const std::uint32_t member : members)
      cuts.insert(cuts.end(), {begin(member, axis), end(member, axis)});
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::sort(members.begin(), members.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(begin(a, axis), a) < std::pair(begin(b, axis), b);
    });
    std::vector<std::uint32_t> active;
    auto next = members.begin();
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      std::erase_if(active, [&](std::uint32_t member) { return end(member, axis) <= cuts[i]; });
      for (; next != members.end() && begin(*next, axis) == cuts[i]; ++next)
        active.push_back(*next);
      if (active.empty()) continue;
      region_.offsets[axis] = cuts[i];
      region_.sizes[axis] = cuts[i + 1] - cuts[i];
      cut(axis + 1, active);
    }
  }

  const BoxList& boxes_;
  Box region_;  ///< the slab that is being cut, on the axes so far
  std::vector<OverlayPart> parts_;
};

}  // namespace

std::vector<OverlayPart> overlay(const BoxList& boxes) {
  return OverlayCutter(boxes).parts();
}

}  // namespace dckpt
