#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "mapping/base/api.h"
#include "mapping/geometry/dtype.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

/// Returns a handle to the elements of `tensor`: no copy, the same strides and device, and the
/// handle keeps the torch tensor alive. A meta tensor stays one. Once it has seen a tensor in CUDA
/// memory, saves and loads begin behind the work that the calling thread has given to torch's
/// current streams. Throws CheckpointError: (invalid argument) for an undefined tensor and for lazy
/// conjugates and negations, whose memory differs from the values that the tensor shows;
/// (unsupported) for sparse layouts, for devices other than CPU and CUDA, and for dtypes that no
/// checkpoint holds.
Tensor from_torch(const at::Tensor& tensor);

/// Returns a torch tensor over the same elements: no copy, and it keeps the handle's owner alive. A
/// handle without elements becomes a meta tensor. Throws CheckpointError (unsupported) for
/// quantized dtypes, whose scales are stored elsewhere.
at::Tensor to_torch(const Tensor& tensor);

/// Returns the corresponding element type; empty if there is none.
std::optional<DType> dtype_from_torch(at::ScalarType type) noexcept;
at::ScalarType dtype_to_torch(DType dtype) noexcept;

}  // namespace dckpt
