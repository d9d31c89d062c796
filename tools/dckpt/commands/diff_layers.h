#pragma once

#include <span>
#include <string>
#include <vector>

#include "operations/inspect/diff.h"

namespace dckpt::tool {

/// Neighboring layers that differ to the same extent.
struct DifferingLayers {
  std::string names;  ///< "decoder 3" or "decoder 3…7"
  std::string share;  ///< "12.5%"
};

/// Returns the layers that differ, with the largest share of differing elements of any tensor of
/// the layer (layer_differences). `keys` are all keys that were compared.
std::vector<DifferingLayers> differing_layers(std::span<const std::string> keys,
                                              const DiffReport& report);

}  // namespace dckpt::tool
