#pragma once

#include "migration/maps/assignment/source_rows.h"

namespace dckpt {

/// A source whose tensors have been assigned to the rows of a map.
struct AssignedSource {
  const KeyMap& map;
  const MapNumbers& numbers;
  const Metadata& metadata;
  const SourceRows& rows;
  bool partial = false;  ///< it is not a whole model: rows without tensors are left out
};

/// Makes the tensors of `result` from the elements of the rows, and lists the objects that Megatron
/// expects beside them. Fills in everything in `result` that does not describe the source alone.
/// Adds misfits to `completeness`. Throws CheckpointError: (mismatch) for a tensor that is made
/// twice, (unsupported) beyond the limits.
void arrange_rows(const AssignedSource& source, const MapTarget& target, MappedKeys& result,
                  Completeness& completeness);

}  // namespace dckpt
