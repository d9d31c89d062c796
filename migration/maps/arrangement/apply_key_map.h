#pragma once

#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/planning/metadata.h"
#include "migration/maps/numbers/map_numbers.h"
#include "migration/maps/sides/map_target.h"
#include "migration/maps/sides/mapped_keys.h"

namespace dckpt {

/// Renames and rearranges the tensors of `source` by the map. Every source tensor is used or listed
/// as dropped, every result tensor is made once, and all elements are used once, except rows that
/// pad the vocabulary. Reads no elements. Throws CheckpointError (mismatch) that lists all misfits
/// in groups: unknown keys, missing keys, and contradictory shapes and numbers.
MappedKeys apply_key_map(const KeyMap& map, const MapNumbers& numbers, const Metadata& source,
                         const MapTarget& target = {});

/// Returns what keeps `source`, which has Hugging Face's keys, from being a whole model with these
/// numbers, as sentences: missing keys, and contradictory shapes and numbers. Keys that the map
/// does not know and numbers that nothing states are no obstacles. Throws CheckpointError
/// (mismatch) if the map knows no key, (unsupported) beyond the limits.
std::vector<std::string> misfits(const KeyMap& map, const MapNumbers& numbers,
                                 const Metadata& source, const MapTarget& target);

}  // namespace dckpt
