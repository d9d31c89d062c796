#pragma once

#include <optional>
#include <vector>

#include "mapping/geometry/box.h"
#include "mapping/state/tensor.h"

namespace dckpt {

/// Where a destination reaches beyond what is stored, each element takes the value of the stored
/// one nearest to it: the last row goes on, as Megatron pads the vocabulary with
/// DIST_CKPT_PAD_REPLICATE.
struct Replication {
  /// The destination, or a whole local tensor of which the destination takes a range.
  Tensor tensor;
  Shape sizes;    ///< its extents in the space of its box: with prepended axes
  Shape strides;  ///< in elements
  Shape filled;   ///< the part from its origin that is read; at least 1 along each axis
  struct Range {
    Tensor destination;
    std::int64_t begin = 0;
  };
  std::optional<Range> range{};  ///< the destination takes the row-major elements from `begin` on
};

/// The part of a stored tensor of `shape` that has to be read for a box which reaches beyond it:
/// what lies inside, and beyond its end the last entry. It belongs at the origin of the box. None
/// for a box or a tensor without elements.
std::optional<Box> nearest_stored(const Box& box, ShapeView shape);

/// Gives the elements that were not read their values.
void replicate(const Replication& replication);

}  // namespace dckpt
