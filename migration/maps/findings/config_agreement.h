#pragma once

#include <optional>

#include "configs/maps/key_map.h"
#include "mapping/base/finding.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"

namespace dckpt {

/// Compares the tensors of a model with the config.json beside them: the tensors that it asks for,
/// the numbers that it states, and the parts that it describes. Tensors that the model's map does
/// not know are not judged, nor are weights that are packed into integers. The map is `own` if it
/// names the model, or else the shipped one; without one, nothing is compared. Returns a finding
/// for each difference.
Findings compare_with_config(const Value& config, const Metadata& written,
                             const std::optional<KeyMap>& own = std::nullopt);

}  // namespace dckpt
