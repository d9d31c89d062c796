#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "mapping/geometry/dtype.h"
#include "mapping/geometry/shape.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace dckpt::conformance {

/// Returns a tensor whose bytes depend on their position and on `key`.
Tensor pattern(DType dtype, const Shape& shape, const std::string& key);

/// Returns the first element and the extent of `rank`'s part of an axis that is divided unevenly:
/// the first rank gets nothing of a short axis.
std::pair<std::int64_t, std::int64_t> uneven_part(std::int64_t extent, int rank, int ranks);

/// Tensors of the checks by key; every rank can make them.
using Tensors = std::map<std::string, Tensor>;

/// Returns tensors of all element types and of usual and unusual shapes.
Tensors sample_tensors();

/// Returns each tensor whole, on one of the ranks.
StateDict shares_of(const Tensors& tensors, int rank, int ranks);

/// Returns a rank's shards: divided unevenly along the first axis, or whole with one main replica
/// if the tensor cannot be divided.
StateDict shards_of(const Tensors& tensors, int rank, int ranks, bool with_data);

}  // namespace dckpt::conformance
