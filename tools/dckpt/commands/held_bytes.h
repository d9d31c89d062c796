#pragma once

#include "operations/convert/convert_options.h"
#include "tools/dckpt/render/picture.h"

namespace dckpt::tool {

/// Draws the bytes that each rank held before a conversion and holds after it, as bars on one
/// scale. Files stand in for ranks if the file names do not identify ranks.
Picture held_bars(const ConvertReport& report, const PictureStyle& style);
void print_held(const ConvertReport& report);

}  // namespace dckpt::tool
