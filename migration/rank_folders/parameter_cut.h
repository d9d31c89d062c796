#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/geometry/box.h"

// The division of a model's parameters among Megatron's tensor-parallel ranks, for code that joins
// their parts and code that takes a whole parameter apart.

namespace dckpt {

/// The axis of a parameter that the tensor-parallel ranks divide.
enum class TensorParallel : std::uint8_t { kReplicated, kRows, kColumns };
/// Returns the axis for the `name` of a ModelKey; empty if it is unknown.
std::optional<TensorParallel> tensor_parallel(std::string_view name);

/// Returns the parameter whose columns tell whether this one (fc1 of an MLP) is gated; empty for
/// others.
std::optional<std::string> gated_partner(std::string_view name);
/// Returns whether fc1 holds the rows of gate and up: twice as many as fc2 has columns. Both shapes
/// are of the part of a rank, or both of the whole.
bool is_gated(ShapeView fc1, ShapeView fc2);

struct ParameterCut {
  TensorParallel axis = TensorParallel::kReplicated;
  bool gated = false;  ///< a rank has its share of the gate's rows, then that of the others
};

/// A box of the part that a rank holds, and its box in the whole parameter.
struct CutPart {
  Box local;
  Box whole;
};

/// Return the shape of the whole parameter of which each of `ranks` holds `local`, and the inverse.
/// Empty if there is none: too few axes, too large, or an axis that `ranks` do not divide.
std::optional<Shape> whole_shape(const ParameterCut& cut, ShapeView local, std::int64_t ranks);
std::optional<Shape> local_shape(const ParameterCut& cut, ShapeView whole, std::int64_t ranks);

/// Returns the parts that `rank` of `ranks` holds, in the order of its rows.
std::vector<CutPart> cut_parts(const ParameterCut& cut, ShapeView local, std::int64_t rank,
                               std::int64_t ranks);

}  // namespace dckpt
