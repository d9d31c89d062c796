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
  /// Positions of the boxes that it was made of, ascending; only one for a box that was not joined.
  std::vector<std::uint32_t> members;
};

/// At most one in this many elements of a joined box lies in none of its members.
inline constexpr std::int64_t kJoinSlack = 21;

/// Joins neighbors among disjoint boxes to larger ones, along the last axis first: columns become
/// rows, rows become blocks. Each box is in exactly one of the results. Only boxes for which
/// `allowed` is true are made. The result depends only on the boxes and their order.
std::vector<JoinedBox> join_boxes(std::span<const Box> boxes,
                                  const std::function<bool(const Box&)>& allowed);

/// Returns the smallest box that holds both.
Box bounding_box(const Box& a, const Box& b);

}  // namespace dckpt
