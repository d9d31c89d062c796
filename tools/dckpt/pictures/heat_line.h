#pragma once

#include <span>
#include <string>

#include "tools/dckpt/render/picture.h"

namespace dckpt::tool {

/// Draws a line of cells, one for each share from 0 to 1, shaded by power of ten: 0, up to 0.1 %, 1
/// %, 10 %, and more. Shares that do not fit continue on the next line. If the lines would be too
/// many, each cell shows the largest of several shares. The number before each line is that of its
/// first share.
Picture heat_line(const std::string& name, std::span<const double> shares,
                  const PictureStyle& style);

/// Returns a sentence that explains the shades.
std::string heat_legend(const PictureStyle& style);

}  // namespace dckpt::tool
