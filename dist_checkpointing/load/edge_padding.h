#pragma once

#include <optional>
#include <vector>

#include "mapping/geometry/box.h"
#include "mapping/state/tensor.h"

namespace dckpt {

/// The padding of a destination that extends beyond the stored tensor: each element takes the value
/// of the nearest stored one, so the last row is repeated, as Megatron pads the vocabulary with
/// DIST_CKPT_PAD_REPLICATE.
struct EdgePadding {
  /// The destination, or a whole local tensor if the destination is a range of it.
  Tensor tensor;
  Shape sizes;    ///< extents in the space of the box, including prepended axes
  Shape strides;  ///< in elements
  Shape filled;   ///< the part that is read, starting at its origin; at least 1 along each axis
  struct Range {
    Tensor destination;
    std::int64_t begin = 0;
  };
  /// Set if the destination takes the row-major elements from `begin` on.
  std::optional<Range> range{};
};

/// Returns the part of a stored tensor of `shape` that has to be read for a box that extends beyond
/// it: the overlap or, for a box beyond its end, the last entry. It goes to the origin of the box.
/// Empty for a box or a tensor without elements.
std::optional<Box> nearest_stored(const Box& box, ShapeView shape);

/// Fills the elements that were not read.
void pad_with_edge(const EdgePadding& padding);

}  // namespace dckpt
