#include "mapping/geometry/cut.h"

#include <algorithm>
#include <utility>

namespace dckpt {

void cut_box(Box box, std::uint64_t item, std::uint64_t limit, std::vector<Box>& out) {
  std::size_t axis = 0;
  while (axis < box.dims() && box.sizes[axis] == 1) ++axis;
  const std::uint64_t bytes = static_cast<std::uint64_t>(numel(box.sizes)) * item;
  if (bytes <= limit || axis == box.dims()) {
    out.push_back(std::move(box));
    return;
  }
  const std::int64_t extent = box.sizes[axis];
  const std::uint64_t layer = bytes / static_cast<std::uint64_t>(extent);
  const auto layers = static_cast<std::int64_t>(std::max<std::uint64_t>(limit / layer, 1));
  const std::int64_t slabs = (extent + layers - 1) / layers;
  for (std::int64_t slab = 0; slab < slabs; ++slab) {
    const auto at = [&](std::int64_t index) {
      return index * (extent / slabs) + std::min(index, extent % slabs);
    };
    Box piece = box;
    piece.offsets[axis] += at(slab);
    piece.sizes[axis] = at(slab + 1) - at(slab);
    if (slabs == extent) {
      cut_box(std::move(piece), item, limit, out);
    } else {
      out.push_back(std::move(piece));
    }
  }
}

}  // namespace dckpt
