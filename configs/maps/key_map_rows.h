#pragma once

#include "configs/maps/key_map.h"
#include "configs/yaml/schema.h"

namespace dckpt {

/// The type of the rows of a map. They follow those of the extended map; a row replaces those of
/// the same Megatron keys.
config::Type<std::vector<MapRow>> map_rows_type();

/// Returns the count of tensors after a transform; empty if it does not take `before` tensors.
std::optional<std::size_t> tensors_after(const MapTransform& transform, std::size_t before);

/// Returns whether a step orders the heads of query, key and value.
bool is_of_heads(MapStep step);

/// Returns the proportion of the tensors that split_rows or split_groups makes; empty if they are
/// equal.
std::vector<std::string> shares_of(const MapTransform& split);

}  // namespace dckpt
