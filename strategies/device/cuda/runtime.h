#pragma once

#include <functional>
#include <memory>

#include "mapping/base/api.h"
#include "strategies/device/runtime.h"

namespace DCKPT_API dckpt {

struct CudaSettings {
  DeviceSettings device{};
  /// Returns the stream (a cudaStream_t) on which the calling thread's kernels fill the tensors of
  /// a GPU; called by save and load in the thread that called them. If empty: torch's current
  /// stream, once from_torch() has made tensors in CUDA memory, else the default stream, which is
  /// right unless a program uses streams of its own that do not wait for it.
  std::function<void*(int gpu)> producer_stream{};
};

/// Lets saves and loads use tensors in CUDA memory: through page-locked memory, on a stream of the
/// library's own, after the kernels of the producer's stream. Call it once, before the first save
/// or load; it creates no context and allocates nothing. Throws CheckpointError (unsupported) if
/// there is no GPU or no driver.
void register_cuda(CudaSettings settings = {});

/// Returns the runtime that register_cuda() registers.
std::shared_ptr<DeviceRuntime> cuda_runtime(std::function<void*(int gpu)> producer_stream = {});

/// Returns the number of GPUs that the CUDA runtime shows; 0 if there is no driver.
int cuda_devices() noexcept;

}  // namespace dckpt
