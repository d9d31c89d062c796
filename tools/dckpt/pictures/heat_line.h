#pragma once

#include <span>
#include <string>

#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

/// Cells in a line, one for each share from 0 to 1, in a shade by its power of ten: 0, up to 0.1 %,
/// 1 %, 10 %, and more. More shares than fit go on in the next line, and so many that the lines
/// are too many share cells, which show the largest. Numbers in front count the cells.
Picture heat_line(const std::string& name, std::span<const double> shares,
                  const PictureStyle& style);

/// What the shades mean.
std::string heat_legend(const PictureStyle& style);

}  // namespace dckpt::tool
