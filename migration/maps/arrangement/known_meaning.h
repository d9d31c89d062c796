#pragma once

#include "migration/maps/assignment/source_rows.h"
#include "migration/maps/numbers/map_numbers.h"
#include "migration/maps/sides/map_target.h"

namespace dckpt {

/// Refuses a conversion to the other side's names if an argument of the model changes the meaning
/// of weights without changing keys and shapes, and the map has no number of that name. Refuses
/// conversions between Megatron's layouts that would divide gate and up wrongly. Throws
/// CheckpointError (unsupported) naming the argument.
void require_known_meaning(const KeyMap& map, const MapNumbers& numbers, const SourceRows& rows,
                           const MapTarget& target);

/// Refuses tensors with more axes than Megatron's. `shape` is that of one layer and expert. Throws
/// CheckpointError (unsupported).
void require_axes(const MapRow& row, const Shape& shape);

/// Refuses a row of the vocabulary without the step pad_rows, if Megatron pads the vocabulary.
void require_padding(const MapRow& row, const Shape& shape, const MapNumbers& numbers);

/// Refuses a row without `gated` that makes gate and up, whose halves the singleton layout stores
/// separately.
void require_halves(const MapRow& row, const Shape& shape, const MapNumbers& numbers);

}  // namespace dckpt
