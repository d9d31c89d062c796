#pragma once

#include "migration/maps/assignment/source_rows.h"

namespace dckpt {

/// Makes the tensors of `result` from the elements of the rows, and lists the objects that Megatron
/// expects beside them. Fills in everything in `result` that does not describe the source alone.
/// `partial`: the source is not a whole model, so rows without tensors are left out. Adds misfits
/// to `completeness`. Throws CheckpointError: (mismatch) for a tensor that is made twice,
/// (unsupported) beyond the limits.
void arrange_rows(const KeyMap& map, const MapNumbers& numbers, const Metadata& source,
                  const SourceRows& rows, const MapTarget& target, bool partial, MappedKeys& result,
                  Completeness& completeness);

}  // namespace dckpt
