#pragma once

#include <string>
#include <utility>

#include "migration/maps/apply_key_map.h"
#include "migration/maps/source_rows.h"

namespace dckpt {

/// The value of an argument in Megatron's args or in run_config.yaml, where it may have another
/// name, and the name that it has there. Null if it is not there or none.
std::pair<std::string, const Value*> find_argument(const Value& config, const std::string& name);

/// Refuses a conversion to the other side's names if an argument of the model changes what weights
/// mean, while keys and shapes stay as they are, and the map does not have a number of that name.
/// Conversions between Megatron's layouts are refused where gate and up would be divided wrongly.
/// Throws CheckpointError (unsupported) that names the argument.
void require_known_meaning(const KeyMap& map, const MapNumbers& numbers, const SourceRows& rows,
                           const MapTarget& target);

/// Refuses tensors with more axes than Megatron's have: `shape` is that of one layer and expert.
/// Throws CheckpointError (unsupported).
void require_axes(const MapRow& row, const Shape& shape);

}  // namespace dckpt
