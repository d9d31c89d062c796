#pragma once

#include "mapping/geometry/box.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// Megatron 0.8–0.15 store flattened ranges of an N-D tensor as an (N+1)-D one: the grid of pieces,
/// then the elements of one piece: size = fragmentation + (numel of a cell). They keep the tensor's
/// own shape beside it.

/// Returns the stored size of a tensor of `shape` cut into `fragmentation` pieces per axis.
/// Requires that the pieces are equal.
Shape reformulated_size(ShapeView shape, ShapeView fragmentation);

/// Returns the shape of one cell of a tensor with `flattened_shape`. Throws CheckpointError
/// (corrupt) if stored size and original shape contradict each other: another number of axes, a
/// grid that does not divide the shape, a last axis that is not the elements of a cell.
Shape reformulated_cell_shape(const TensorStorageMetadata& tensor);

/// Returns whether a stored size can be the reformulation of a tensor of `shape`; for metadata that
/// have lost the original shape.
bool may_be_reformulated(ShapeView size, ShapeView shape) noexcept;

}  // namespace dckpt
