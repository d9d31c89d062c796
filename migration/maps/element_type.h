#pragma once

#include <string>

#include "configs/key_map.h"
#include "mapping/geometry/dtype.h"
#include "migration/maps/apply_key_map.h"

namespace dckpt {

/// Why a tensor of a row stays as it is `stored` when all others become `wanted`, as the end of a
/// sentence. Empty if it becomes that, too.
std::string why_type_stays(const MapRow& row, KeyNames to, DType stored, DType wanted);

}  // namespace dckpt
