#pragma once

#include <optional>
#include <string>
#include <vector>

#include "configs/key_map.h"
#include "mapping/state/value.h"
#include "migration/maps/map_numbers.h"

namespace dckpt {

/// The number that says whether rows of query and key that turn together are neighbours in Hugging
/// Face files.
inline constexpr const char* kHfRotaryInterleaved = "hf_rotary_interleaved";

/// The model type, in config.json or of the map, whose Hugging Face files have such neighbours.
/// Empty if it is not known to have them.
std::optional<std::string> type_with_rotary_neighbors(const KeyMap& map, const Value& config);

/// The steps of a row without those that would make neighbours of neighbours.
std::vector<MapTransform> steps_without_second_turn(const MapRow& row,
                                                    const std::vector<MapTransform>& steps,
                                                    const MapNumbers& numbers);

/// Refuses a model whose Hugging Face files have neighbours and Megatron's weights halves, unless
/// the map has a step for that. Throws CheckpointError (unsupported).
void require_rotary_order(const KeyMap& map, const MapNumbers& numbers);

}  // namespace dckpt
