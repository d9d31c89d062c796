#include "mapping/geometry/join.h"

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

namespace dckpt {
namespace {

struct Group {
  JoinedBox joined;
  std::int64_t elements = 0;  ///< sum over its members
};

/// Orders boxes such that those beside each other along `axis` follow each other.
bool comes_before(const Box& a, const Box& b, std::size_t axis) {
  for (std::size_t other = 0; other < a.dims(); ++other) {
    if (other == axis) continue;
    const auto left = std::pair(a.offsets[other], a.sizes[other]);
    const auto right = std::pair(b.offsets[other], b.sizes[other]);
    if (left != right) return left < right;
  }
  return a.offsets[axis] < b.offsets[axis];
}

bool is_tight(const Box& box, std::int64_t elements) {
  const std::int64_t all = numel(box.sizes);
  return all - elements <= all / kJoinSlack;
}

}  // namespace

Box bounding_box(const Box& a, const Box& b) {
  Box box{Shape(a.dims()), Shape(a.dims())};
  for (std::size_t axis = 0; axis < a.dims(); ++axis) {
    box.offsets[axis] = std::min(a.offsets[axis], b.offsets[axis]);
    box.sizes[axis] = std::max(a.offsets[axis] + a.sizes[axis], b.offsets[axis] + b.sizes[axis]) -
                      box.offsets[axis];
  }
  return box;
}

std::vector<JoinedBox> join_boxes(std::span<const Box> boxes,
                                  const std::function<bool(const Box&)>& allowed) {
  std::vector<Group> groups;
  for (std::uint32_t i = 0; i < boxes.size(); ++i)
    groups.push_back({{boxes[i], {i}}, numel(boxes[i].sizes)});
  for (std::size_t axis = groups.empty() ? 0 : boxes.front().dims(); axis-- > 0;) {
    std::stable_sort(groups.begin(), groups.end(), [&](const Group& a, const Group& b) {
      return comes_before(a.joined.box, b.joined.box, axis);
    });
    std::vector<Group> larger;
    for (Group& group : groups) {
      if (!larger.empty()) {
        Group& last = larger.back();
        Box box = bounding_box(last.joined.box, group.joined.box);
        if (is_tight(box, last.elements + group.elements) && allowed(box)) {
          last.joined.box = std::move(box);
          last.joined.members.insert(last.joined.members.end(), group.joined.members.begin(),
                                     group.joined.members.end());
          last.elements += group.elements;
          continue;
        }
      }
      larger.push_back(std::move(group));
    }
    groups = std::move(larger);
  }
  std::vector<JoinedBox> joined;
  for (Group& group : groups) {
    std::sort(group.joined.members.begin(), group.joined.members.end());
    joined.push_back(std::move(group.joined));
  }
  std::sort(joined.begin(), joined.end(), [](const JoinedBox& a, const JoinedBox& b) {
    return a.members.front() < b.members.front();
  });
  return joined;
}

}  // namespace dckpt
