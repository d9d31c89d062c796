#pragma once

#include "migration/maps/source_rows.h"

namespace dckpt {

/// Makes the tensors of the result of the rows' elements, and names the objects that Megatron asks
/// for beside them: everything in `result` that is not said of the source alone. `partial`: rows
/// without tensors are left out, as the source is not a whole model. What does not fit goes to
/// `completeness`. Throws CheckpointError (mismatch) for a tensor that is made twice, (unsupported)
/// beyond the limits.
void arrange_rows(const KeyMap& map, const MapNumbers& numbers, const Metadata& source,
                  const SourceRows& rows, const MapTarget& target, bool partial, MappedKeys& result,
                  Completeness& completeness);

}  // namespace dckpt
