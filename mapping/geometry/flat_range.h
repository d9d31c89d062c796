#pragma once

#include <cstdint>
#include <vector>

#include "mapping/geometry/box.h"

namespace dckpt {

/// A piece of a flattened range that is itself a box: `box` relative to the flattened shape, whose
/// elements start at position `begin` of the row-major order of that shape and are contiguous in
/// it.
struct FlatPiece {
  Box box;
  std::int64_t begin = 0;
  friend bool operator==(const FlatPiece&, const FlatPiece&) = default;
};

/// Splits the row-major elements [begin, end) of a tensor of this shape into boxes, in order: at
/// most 2·N−1 of them for N axes. Each piece is contiguous in row-major order, so a 1-D buffer that
/// holds the range can be cut at the pieces' `begin`. Requires 0 ≤ begin ≤ end ≤ numel(shape). An
/// empty range gives no pieces; a 0-dim shape gives one of zero axes.
std::vector<FlatPiece> split_flat_range(ShapeView shape, std::int64_t begin, std::int64_t end);

}  // namespace dckpt
