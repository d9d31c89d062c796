#pragma once

#include "configs/key_map.h"
#include "configs/schema.h"

namespace dckpt {

/// Rows come after those of the map that is extended; a row replaces those of the same Megatron
/// key.
config::Type<std::vector<MapRow>> map_rows_type();

/// What a transform does to the count of tensors. Empty if it cannot follow so many.
std::optional<std::size_t> tensors_after(const MapTransform& transform, std::size_t before);

}  // namespace dckpt
