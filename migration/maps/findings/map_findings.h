#pragma once

#include <optional>

#include "configs/maps/key_map.h"
#include "mapping/base/finding.h"
#include "mapping/geometry/dtype.h"
#include "mapping/planning/metadata.h"
#include "migration/maps/findings/map_report.h"
#include "migration/maps/numbers/map_numbers.h"

namespace dckpt {

/// The dtypes that settings of a map ask for.
struct MapDTypes {
  DType values;                ///< of weights that were quantized
  std::optional<DType> asked;  ///< of all weights (--dtype)
};

/// Describes what a map did to a checkpoint with the metadata `source`: keys, counts of
/// parameters, casts, what was dropped, and rows that may not mean what they should. Does not use
/// `report.findings`.
Findings map_findings(const KeyMap& map, const MapReport& report, const MapNumbers& numbers,
                      const Metadata& source, const MapDTypes& dtypes);

}  // namespace dckpt
