#pragma once

#include <cstdint>
#include <vector>

#include "mapping/geometry/box.h"

namespace dckpt {

/// Appends the pieces of a box whose elements have `item` bytes: slabs of at most `limit` bytes
/// along its first long axis, cut along the axes after it where one layer is still too large. A
/// piece has at least one element.
void cut_box(Box box, std::uint64_t item, std::uint64_t limit, std::vector<Box>& out);

}  // namespace dckpt
