#pragma once

#include <span>
#include <string>

#include "operations/inspect/diff.h"
#include "tools/dckpt/render/picture.h"

namespace dckpt::tool {

/// Draws how much of each layer differs, as a line of cells for each stack of layers. A cell shows
/// the largest share of differing elements of any tensor of the layer, where a tensor that is
/// missing or has another shape or dtype counts as entirely different. Returns an empty picture if
/// no differing tensor belongs to a layer or holds several. `keys` are all keys that were compared.
Picture layer_heat(std::span<const std::string> keys, const DiffReport& report,
                   const PictureStyle& style);

}  // namespace dckpt::tool
