#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>

#include "strategies/device/cuda/current_device.h"
#include "strategies/device/runtime.h"

// Internal to the code that calls CUDA (strategies/device/cuda, strategies/comm/nccl); not
// installed.
namespace dckpt::cuda {

/// cudaDeviceProp::memPitch, the same on all GPUs.
inline constexpr std::size_t kMaxPitch = 0x7fffffff;

/// Enqueues a copy, with one call if CUDA allows that. Throws CheckpointError (io).
inline void copy_rows(const DeviceCopy& copy, cudaStream_t stream) {
  using Direction = DeviceCopy::Direction;
  const cudaMemcpyKind kind = copy.direction == Direction::kToHost     ? cudaMemcpyDeviceToHost
                              : copy.direction == Direction::kToDevice ? cudaMemcpyHostToDevice
                                                                       : cudaMemcpyDeviceToDevice;
  const char* const what = copy.direction == Direction::kOnDevice
                               ? "copying in GPU memory"
                               : "copying between CPU and GPU memory";
  const bool dense =
      copy.rows == 1 || (copy.to_pitch == copy.row_bytes && copy.from_pitch == copy.row_bytes);
  if (dense) {
    check_cuda(cudaMemcpyAsync(copy.to, copy.from, copy.rows * copy.row_bytes, kind, stream), what);
  } else if (std::max(copy.to_pitch, copy.from_pitch) <= kMaxPitch) {
    check_cuda(cudaMemcpy2DAsync(copy.to, copy.to_pitch, copy.from, copy.from_pitch, copy.row_bytes,
                                 copy.rows, kind, stream),
               what);
  } else {
    for (std::size_t row = 0; row < copy.rows; ++row) {
      check_cuda(cudaMemcpyAsync(copy.to + row * copy.to_pitch, copy.from + row * copy.from_pitch,
                                 copy.row_bytes, kind, stream),
                 what);
    }
  }
}

}  // namespace dckpt::cuda
