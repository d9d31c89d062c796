#pragma once

#include <cstdint>
#include <vector>

#include "mapping/geometry/box.h"

namespace dckpt {

/// A part of the union of some boxes.
struct OverlayPart {
  Box box;
  std::vector<std::uint32_t> members;  ///< positions of the boxes that contain it, ascending; it
                                       ///< has no element in common with the others
};

/// Cuts the union of boxes into disjoint parts, each inside or outside of every box. Equal boxes
/// stay whole, and so do boxes that nothing overlaps or cuts short. Boxes without elements are in
/// no part. The cuts go along the axes in order: work and parts grow with the number of boxes where
/// these are equal, or rows, or a grid; at worst, where rows and columns cross, with its square.
std::vector<OverlayPart> overlay(const BoxList& boxes);

}  // namespace dckpt
