#pragma once

#include <span>
#include <string>

#include "dist_checkpointing/inspect/diff.h"
#include "tools/dckpt/pictures/picture.h"

namespace dckpt::tool {

/// How much of each layer differs, as a line of cells for each stack of layers: the share of the
/// elements of the tensor that differs most, all of one that is missing or of another shape or
/// dtype. None if no key of a difference has the number of a layer. `keys` are all that were
/// compared.
Picture layer_heat(std::span<const std::string> keys, const DiffReport& report,
                   const PictureStyle& style);

}  // namespace dckpt::tool
