#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "mapping/base/error.h"

// Internal to the code that calls CUDA (strategies/device/cuda, strategies/comm/nccl); not
// installed.
namespace dckpt::cuda {

/// Throws CheckpointError (io) unless the call succeeded.
inline void check_cuda(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  cudaGetLastError();  // reported here; the trainer's next check must not find it
  throw_error(ErrorCode::kIo, "{}: {} ({})", what, cudaGetErrorString(result),
              cudaGetErrorName(result));
}

/// Returns whether this process uses a device at all.
inline bool has_context(int device) {
#if CUDART_VERSION >= 12050
  using GetState = int (*)(int device, unsigned int* flags, int* active);
  static const auto get_state = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000,
                                         cudaEnableDefault, &found) != cudaSuccess) {
      cudaGetLastError();
      function = nullptr;
    }
    return reinterpret_cast<GetState>(function);
  }();
  if (get_state != nullptr) {
    unsigned int flags = 0;
    int active = 1;
    get_state(device, &flags, &active);
    return active != 0;
  }
#endif
  return true;
}

/// Makes a device current in this thread, and keeps calls here from breaking a graph that another
/// thread captures. The previous device is not made current again if that would be its first use: a
/// background thread that never chose one has device 0, and a context there would cost every
/// process memory of the first GPU.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check_cuda(cudaGetDevice(&before_), "cudaGetDevice");
    check_cuda(cudaSetDevice(device), str_format("cudaSetDevice({})", device));
    cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() {
    cudaThreadExchangeStreamCaptureMode(&mode_);
    if (has_context(before_) && cudaSetDevice(before_) != cudaSuccess) cudaGetLastError();
  }

 private:
  int before_ = 0;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace dckpt::cuda
