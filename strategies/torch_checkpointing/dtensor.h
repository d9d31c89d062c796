#pragma once

#include <optional>

#include "mapping/geometry/layout.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"

namespace dckpt {

/// torch.distributed.tensor.DTensor, as torch.save pickles it.
struct PickledDTensor {
  Tensor local;
  DType dtype = DType::kFloat32;
  Shape global_shape;
  /// How it is distributed; empty if this version of torch, or this mesh, is not known.
  std::optional<MeshLayout> layout{};
};

/// Empty for anything else. Throws CheckpointError (corrupt) for one that contradicts itself.
std::optional<PickledDTensor> dtensor_of(const Value& value);

}  // namespace dckpt
