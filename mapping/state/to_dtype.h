#pragma once

#include "mapping/base/api.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

/// Returns a contiguous copy with elements of another dtype, rounded as torch's Tensor.to() does:
/// between floating types, between complex types, and from integers to wider ones. CPU only. Throws
/// CheckpointError (invalid argument) for other pairs of dtypes.
[[nodiscard]] Tensor to_dtype(const Tensor& tensor, DType dtype);

}  // namespace dckpt
