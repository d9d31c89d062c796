#pragma once

#include "dist_checkpointing/rewrite/convert.h"
#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

/// How much ranks held before a conversion and hold after it, as bars of one scale; files, where
/// their names tell no ranks.
Picture held_bars(const ConvertReport& report, const PictureStyle& style);
void print_held(const ConvertReport& report);

}  // namespace dckpt::tool
