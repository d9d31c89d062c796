#pragma once

#include "configs/key_map.h"
#include "configs/schema.h"

namespace dckpt {

/// Rows come after those of the map that is extended; a row replaces those of the same Megatron
/// keys.
config::Type<std::vector<MapRow>> map_rows_type();

/// What a transform does to the count of tensors. Empty if it cannot follow so many.
std::optional<std::size_t> tensors_after(const MapTransform& transform, std::size_t before);

/// The proportion of the tensors that split_rows or split_groups makes; empty if they are equal.
std::vector<std::string> shares_of(const MapTransform& split);

}  // namespace dckpt
