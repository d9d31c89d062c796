#pragma once

#include <string_view>

#include "mapping/planning/metadata.h"
#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

/// The chunks of a tensor around the first elements that none or several of them hold, with the
/// ranks (or numbers of the files) that stored them. None if there are no such elements.
Picture coverage_picture(const Metadata& metadata, std::string_view key, const PictureStyle& style);

}  // namespace dckpt::tool
