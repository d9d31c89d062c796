#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "mapping/geometry/box.h"

namespace dckpt {

/// A box around others.
struct JoinedBox {
  Box box;
  /// Positions of the boxes that it was made of, ascending; one if it is one of them.
  std::vector<std::uint32_t> members;
};

/// At most one of so many elements of a joined box lies in none of its members.
inline constexpr std::int64_t kJoinSlack = 21;

/// Joins neighbours among disjoint boxes to larger ones, along the last axis first: columns become
/// rows, rows become blocks. Each box is in exactly one of the answers. Only boxes for which
/// `allowed` is true are made. The answer depends on nothing but the boxes and their order.
std::vector<JoinedBox> join_boxes(std::span<const Box> boxes,
                                  const std::function<bool(const Box&)>& allowed);

/// The smallest box that holds both.
Box bounding_box(const Box& a, const Box& b);

}  // namespace dckpt
