#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/geometry/box.h"

// How Megatron's tensor-parallel ranks share the parameters of a model: what joins their parts and
// what takes a whole parameter apart both ask here.

namespace dckpt {

/// Which axis of a parameter the tensor-parallel ranks share.
enum class TensorParallel : std::uint8_t { kReplicated, kRows, kColumns };
/// `name`: of a ModelKey. Empty if it is unknown.
std::optional<TensorParallel> tensor_parallel(std::string_view name);

/// The parameter whose columns tell whether this one (fc1 of an MLP) is gated; empty for others.
std::optional<std::string> gated_partner(std::string_view name);
/// Whether fc1 holds the rows of gate and up: twice as many as fc2 has columns. Of what a rank
/// holds, or of the whole.
bool is_gated(ShapeView fc1, ShapeView fc2);

struct ParameterCut {
  TensorParallel axis = TensorParallel::kReplicated;
  bool gated = false;  ///< a rank has its share of the gate's rows, then that of the others
};

/// Box `local` of what a rank holds is box `whole` of the parameter.
struct CutPart {
  Box local;
  Box whole;
};

/// The shape of the whole parameter of which each of `ranks` holds `local`, and the inverse. Empty
/// if there is none: too few axes, too large, or an axis that `ranks` do not divide.
std::optional<Shape> whole_shape(const ParameterCut& cut, ShapeView local, std::int64_t ranks);
std::optional<Shape> local_shape(const ParameterCut& cut, ShapeView whole, std::int64_t ranks);

/// What `rank` of `ranks` holds, in the order of its rows.
std::vector<CutPart> cut_parts(const ParameterCut& cut, ShapeView local, std::int64_t rank,
                               std::int64_t ranks);

}  // namespace dckpt
