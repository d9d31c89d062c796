#pragma once

#include <cstddef>
#include <cstdint>

#include "mapping/base/api.h"
#include "mapping/geometry/shape.h"

namespace DCKPT_API dckpt {

/// The places of the elements of a box, in elements: element (i, j, …) has the place
/// offset + i·strides[0] + j·strides[1] and so on.
struct StridedView {
  std::int64_t offset = 0;
  Shape strides;
  friend bool operator==(const StridedView&, const StridedView&) = default;
};

/// A set of equally long contiguous runs, common to a source and a destination: the rest of a box
/// copy when the inner axes that are dense on both sides have been merged.
struct RunPlan {
  std::int64_t run = 0;  ///< elements per run; 0 when there is nothing to copy
  std::int64_t source_offset = 0;
  std::int64_t destination_offset = 0;
  Shape counts;  ///< extents of the remaining outer axes
  Shape source_strides;
  Shape destination_strides;
};

/// Merges axes of extent 1 and axes that are dense on both sides. Runs come out in source order
/// only as far as the strides of the source fall from the first axis to the last.
[[nodiscard]] RunPlan plan_runs(ShapeView sizes, const StridedView& source,
                                const StridedView& destination);

/// Calls `visit(source_element, destination_element)` at the start of each run, last axis fastest.
template <typename Visit>
void for_each_run(const RunPlan& plan, Visit&& visit) {
  if (plan.run == 0) return;
  const std::size_t dims = plan.counts.size();
  Shape at(dims, 0);
  std::int64_t source = plan.source_offset;
  std::int64_t destination = plan.destination_offset;
  for (;;) {
    visit(source, destination);
    std::size_t axis = dims;
    for (;;) {
      if (axis == 0) return;
      --axis;
      source += plan.source_strides[axis];
      destination += plan.destination_strides[axis];
      if (++at[axis] < plan.counts[axis]) break;
      source -= plan.source_strides[axis] * plan.counts[axis];
      destination -= plan.destination_strides[axis] * plan.counts[axis];
      at[axis] = 0;
    }
  }
}

/// Copies a box of elements between two buffers that do not overlap. Offsets and strides are
/// relative to the pointers.
void strided_copy(ShapeView sizes, std::size_t item_size, const std::byte* source,
                  const StridedView& source_view, std::byte* destination,
                  const StridedView& destination_view);

}  // namespace dckpt
