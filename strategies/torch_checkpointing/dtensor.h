#pragma once

#include <optional>

#include "mapping/geometry/layout.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace dckpt {

/// A torch.distributed.tensor.DTensor, as torch.save pickles it.
struct PickledDTensor {
  Tensor local;
  DType dtype = DType::kFloat32;
  Shape global_shape;
  /// The distribution; empty if this version of torch, or this mesh, is not known.
  std::optional<MeshLayout> layout{};
};

/// Returns the DTensor in a value; empty for any other value. Throws CheckpointError (corrupt) for
/// a DTensor that contradicts itself.
std::optional<PickledDTensor> dtensor_of(const Value& value);

}  // namespace dckpt
