#pragma once

#include <string>

#include "configs/maps/key_map.h"
#include "mapping/geometry/dtype.h"
#include "migration/maps/sides/map_target.h"

namespace dckpt {

/// Returns why a row's tensor, stored as `stored`, keeps its dtype when all others become `wanted`,
/// as the end of a sentence; empty if it becomes `wanted`, too.
std::string why_type_stays(const MapRow& row, KeyNames to, DType stored, DType wanted);

}  // namespace dckpt
