#pragma once

#include <optional>
#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/state/value.h"
#include "migration/maps/numbers/map_numbers.h"

namespace dckpt {

/// The map number that says whether query and key rows that are rotated together are adjacent in
/// Hugging Face files.
inline constexpr const char* kHfRotaryInterleaved = "hf_rotary_interleaved";

/// Returns a text naming the model type, from config.json or of the map, whose Hugging Face files
/// have such rows adjacent; empty if none is known to.
std::optional<std::string> type_with_rotary_neighbors(const KeyMap& map, const Value& config);

/// Returns the steps of a row without those that would interleave rows that are already adjacent.
std::vector<MapTransform> steps_without_second_turn(const MapRow& row,
                                                    const std::vector<MapTransform>& steps,
                                                    const MapNumbers& numbers);

/// Refuses a model whose rows that are rotated together are adjacent in Hugging Face files and in
/// two halves in Megatron's weights, unless the map has a step for that. Throws CheckpointError
/// (unsupported). Also refuses a row that joins query and key and leaves their order, although rows
/// that turn together are neighbors in Megatron and halves in Hugging Face files.
void require_rotary_order(const KeyMap& map, const MapNumbers& numbers);

}  // namespace dckpt
