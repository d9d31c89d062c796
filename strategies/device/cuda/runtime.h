#pragma once

#include <functional>
#include <memory>

#include "mapping/base/api.h"
#include "strategies/device/runtime.h"

namespace DCKPT_API dckpt {

struct CudaSettings {
  DeviceSettings device{};
  /// The stream (a cudaStream_t) on which the calling thread's kernels fill the tensors of a GPU;
  /// called by save and load in the thread that called them. Empty: once from_torch() has made
  /// tensors in CUDA memory, torch's current stream; else the default stream, which is right unless
  /// a program uses streams of its own that do not wait for it.
  std::function<void*(int gpu)> producer_stream{};
};

/// From now on, tensors in CUDA memory are saved and loaded: through page-locked memory, on a
/// stream of the library's own, behind the kernels of the producer's stream. Call it once, before
/// the first save or load; it creates no context and allocates nothing. Throws CheckpointError
/// (unsupported) if there is no GPU or no driver.
void register_cuda(CudaSettings settings = {});

/// What register_cuda() registers.
std::shared_ptr<DeviceRuntime> cuda_runtime(std::function<void*(int gpu)> producer_stream = {});

/// GPUs that the CUDA runtime shows; 0 if there is no driver.
int cuda_devices() noexcept;

}  // namespace dckpt
