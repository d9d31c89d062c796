#pragma once

#include <span>
#include <string>

#include "mapping/geometry/box.h"
#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

/// A piece of a tensor with what its cells say, a few characters: its rank.
struct GridPiece {
  Box box;
  std::string label;
};

/// The cells into which the boxes cut a tensor, with the offsets where they begin: two axes as rows
/// and columns, one as a strip. Of more axes that are cut, those after the first two are looked at
/// where `at` is (by default their beginning), which a sentence below says. Of cells that do not
/// fit, the first and the last are shown, or those around `at`. Cells without a piece are holes,
/// cells with several overlap. Pieces may be invalid; parts outside of the tensor are not drawn.
Picture grid(ShapeView shape, std::span<const GridPiece> pieces, const PictureStyle& style,
             ShapeView at = {});

}  // namespace dckpt::tool
