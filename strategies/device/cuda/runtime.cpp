#include "strategies/device/cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/state/producer_stream.h"
#include "strategies/device/cuda/copy_rows.h"
#include "strategies/device/cuda/current_device.h"
#include "strategies/device/cuda/huge_page_memory.h"

namespace dckpt {
namespace {

using cuda::check_cuda;
using cuda::OnDevice;

/// Clears the error of a call whose failure no longer matters.
void forget(cudaError_t result) noexcept {
  if (result != cudaSuccess) cudaGetLastError();
}

/// Returns the number of devices and cudaSuccess, or 0 and the error.
std::pair<int, cudaError_t> count_devices() noexcept {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  forget(result);
  return {result == cudaSuccess ? count : 0, result};
}

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(std::function<void*(int)> producer) : producer_(std::move(producer)) {}

  std::string name() const override { return "CUDA"; }

  std::byte* allocate_page_locked(int device, std::size_t bytes) override {
    const OnDevice current(device);
    if (std::byte* const huge = huge_pages_.allocate(bytes)) return huge;
    void* memory = nullptr;
    const cudaError_t result = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
    if (result == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check_cuda(result, "allocating page-locked memory");
    return static_cast<std::byte*>(memory);
  }
  void free_page_locked(std::byte* memory) noexcept override {
    if (!huge_pages_.free(memory)) forget(cudaFreeHost(memory));
  }

  Stream producer_stream(int device) override {
    if (producer_) return producer_(device);
    const ProducerStream ask = dckpt::producer_stream();
    return ask != nullptr ? ask({Device::Kind::kCuda, device}) : nullptr;
  }

  Stream create_stream(int device) override {
    const OnDevice current(device);
    cudaStream_t stream = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a CUDA stream");
    return stream;
  }
  void destroy_stream(int /*device*/, Stream stream) noexcept override {
    forget(cudaStreamDestroy(static_cast<cudaStream_t>(stream)));
  }

  Event create_event(int device) override {
    const OnDevice current(device);
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating a CUDA event");
    return event;
  }
  void destroy_event(int /*device*/, Event event) noexcept override {
    forget(cudaEventDestroy(static_cast<cudaEvent_t>(event)));
  }
  void record(int device, Event event, Stream stream) override {
    const OnDevice current(device);
    check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)),
               "recording a CUDA event");
  }
  void wait(int device, Stream stream, Event event) override {
    const OnDevice current(device);
    check_cuda(
        cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0),
        "letting a CUDA stream wait");
  }
  bool reached(int device, Event event) override {
    const OnDevice current(device);
    const cudaError_t result = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (result == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    check_cuda(result, "waiting for a copy from or to GPU memory");
    return true;
  }

  void copy(int device, Stream stream, const DeviceCopy& copy) override {
    const OnDevice current(device);
    cuda::copy_rows(copy, static_cast<cudaStream_t>(stream));
  }

 private:
  const std::function<void*(int)> producer_;
  cuda::HugePageMemory huge_pages_;
};

}  // namespace

std::shared_ptr<DeviceRuntime> cuda_runtime(std::function<void*(int gpu)> producer_stream) {
  return std::make_shared<CudaRuntime>(std::move(producer_stream));
}

int cuda_devices() noexcept {
  return count_devices().first;
}

void register_cuda(CudaSettings settings) {
  if (const auto [count, result] = count_devices(); count == 0) {
    throw_error(ErrorCode::kUnsupported,
                "CUDA cannot be used: {}; programs that also run without GPUs ask "
                "cuda_devices() first",
                result == cudaSuccess ? "there is no GPU" : cudaGetErrorString(result));
  }
  register_device(Device::Kind::kCuda, cuda_runtime(std::move(settings.producer_stream)),
                  settings.device);
}

}  // namespace dckpt
