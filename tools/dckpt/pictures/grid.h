#pragma once

#include <span>
#include <string>

#include "mapping/geometry/box.h"
#include "tools/dckpt/render/picture.h"

namespace dckpt::tool {

/// A piece of a tensor and the short label of its cells: its rank.
struct GridPiece {
  Box box;
  std::string label;
};

/// Draws the cells into which the boxes cut a tensor, with the offsets where they begin: two axes
/// as rows and columns, one as a strip. If more axes are cut, the first two are drawn and the
/// others are fixed at `at` (by default at their beginning), which a sentence below says. If not
/// all cells fit, the first and the last are shown, or those around `at`. Cells without a piece are
/// holes, cells with several overlap. Pieces may be invalid; parts outside of the tensor are not
/// drawn.
Picture grid(ShapeView shape, std::span<const GridPiece> pieces, const PictureStyle& style,
             ShapeView at = {});

}  // namespace dckpt::tool
