#pragma once

#include <string_view>

#include "mapping/planning/metadata.h"
#include "tools/dckpt/render/picture.h"

namespace dckpt::tool {

/// Draws the chunks of a tensor around its first hole or overlap, labeled with the ranks (or file
/// numbers) that stored them. Returns an empty picture if there is neither.
Picture coverage_picture(const Metadata& metadata, std::string_view key, const PictureStyle& style);

}  // namespace dckpt::tool
