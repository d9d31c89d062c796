#include <cuda_runtime.h>
#include <algorithm>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tests/strategies/comm/nccl/fake_machine.h"
#include "tests/strategies/comm/nccl/fake_nccl.h"

using namespace dckpt::fake_nccl;

struct CUevent_st {
  std::shared_ptr<bool> done = std::make_shared<bool>(true);  ///< guarded by the machine's mutex
};

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode capture_mode = cudaStreamCaptureModeGlobal;

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

/// Runs the body unless the fault of the function is due.
template <typename Body>
cudaError_t cuda_call(const char* function, cudaError_t fault, Body&& body) {
  if (capture_mode != cudaStreamCaptureModeRelaxed)
    note_misuse(std::string(function) + " would break a graph that another thread captures");
  if (fails(function)) return report(fault);
  return report(body());
}

cudaError_t allocate(void** memory, std::size_t size, int device) {
  constexpr std::size_t kPage = 4096;
  auto* const bytes =
      static_cast<std::byte*>(std::aligned_alloc(kPage, (size + kPage - 1) / kPage * kPage));
  if (bytes == nullptr) return cudaErrorMemoryAllocation;
  *memory = bytes;
  const std::scoped_lock lock(machine.mutex);
  machine.memory[bytes] = {size, device};
  return cudaSuccess;
}

void wait_idle(int device) {
  std::unique_lock lock(machine.mutex);
  machine.changed.wait(lock, [device] { return is_idle(device); });
}

cudaError_t release(void* memory) {
  wait_idle(this_device);
  auto* const bytes = static_cast<std::byte*>(memory);
  {
    const std::scoped_lock lock(machine.mutex);
    if (machine.memory.erase(bytes) == 0) return cudaErrorInvalidValue;
  }
  std::free(bytes);
  return cudaSuccess;
}

void check_places(const char* function, const void* to, std::size_t to_size, const void* from,
                  std::size_t from_size, cudaMemcpyKind kind) {
  const int source = place_of(from, from_size);
  const int destination = place_of(to, to_size);
  const auto is_host = [](int place) {
    return place == -1 || (place == -2 && machine.takes_ordinary_memory);
  };
  const bool from_here = source == this_device;
  const bool to_here = destination == this_device;
  const bool right = kind == cudaMemcpyHostToDevice   ? is_host(source) && to_here
                     : kind == cudaMemcpyDeviceToHost ? from_here && is_host(destination)
                                                      : from_here && to_here;
  if (!right) note_misuse(std::string(function) + " between the wrong kinds of memory");
}

int primary_context_state(int device, unsigned int* flags, int* active) {
  *flags = 0;
  *active = dckpt::fake_nccl::contexts().contains(device) ? 1 : 0;
  return 0;
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const std::scoped_lock lock(machine.mutex);
  *count = machine.devices;
  return machine.devices > 0 ? cudaSuccess : report(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  if (fails("cudaGetDevice")) return report(cudaErrorUnknown);
  *device = this_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (fails("cudaSetDevice")) return report(cudaErrorUnknown);
  const std::scoped_lock lock(machine.mutex);
  if (device < 0 || device >= machine.devices) return report(cudaErrorInvalidDevice);
  machine.contexts.insert(device);
  this_device = device;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(capture_mode, *mode);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  if (fails("cudaGetDriverEntryPointByVersion")) return report(cudaErrorUnknown);
  if (std::strcmp(symbol, "cuDevicePrimaryCtxGetState") != 0) return report(cudaErrorInvalidValue);
  *function = reinterpret_cast<void*>(&primary_context_state);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory"
         : error == cudaErrorInvalidDevice  ? "invalid device ordinal"
                                            : "unknown error";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
         : error == cudaErrorInvalidDevice  ? "cudaErrorInvalidDevice"
                                            : "cudaErrorUnknown";
}

cudaError_t cudaMalloc(void** memory, std::size_t size) {
  return cuda_call("cudaMalloc", cudaErrorMemoryAllocation,
                   [&] { return allocate(memory, size, this_device); });
}

cudaError_t cudaHostAlloc(void** memory, std::size_t size, unsigned int) {
  return cuda_call("cudaHostAlloc", cudaErrorMemoryAllocation,
                   [&] { return allocate(memory, size, -1); });
}

cudaError_t cudaHostRegister(void* memory, std::size_t size, unsigned int) {
  return cuda_call("cudaHostRegister", cudaErrorNotSupported, [&] {
    const std::scoped_lock lock(machine.mutex);
    machine.memory[static_cast<std::byte*>(memory)] = {size, -1};
    return cudaSuccess;
  });
}

cudaError_t cudaHostUnregister(void* memory) {
  wait_idle(this_device);
  const std::scoped_lock lock(machine.mutex);
  return machine.memory.erase(static_cast<std::byte*>(memory)) == 1
             ? cudaSuccess
             : report(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaFree(void* memory) {
  return release(memory);
}
cudaError_t cudaFreeHost(void* memory) {
  return release(memory);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  return cuda_call("cudaStreamCreateWithFlags", cudaErrorUnknown, [&] {
    *stream = new CUstream_st{.device = this_device};
    const std::scoped_lock lock(machine.mutex);
    machine.streams.insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return cuda_call("cudaStreamSynchronize", cudaErrorUnknown, [&] {
    std::unique_lock lock(machine.mutex);
    machine.changed.wait(lock, [&] { return !stream->busy && stream->work.empty(); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  wait_idle(stream->device);
  {
    const std::scoped_lock lock(machine.mutex);
    machine.streams.erase(stream);
    stream->worker.request_stop();
    machine.changed.notify_all();
  }
  stream->worker.join();
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  return cuda_call("cudaEventCreateWithFlags", cudaErrorUnknown, [&] {
    *event = new CUevent_st;
    const std::scoped_lock lock(machine.mutex);
    ++machine.events;
    return cudaSuccess;
  });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::scoped_lock lock(machine.mutex);
  --machine.events;
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cuda_call("cudaEventRecord", cudaErrorUnknown, [&] {
    {
      const std::scoped_lock lock(machine.mutex);
      event->done = std::make_shared<bool>(false);
    }
    const auto reach = [done = event->done] {
      const std::scoped_lock lock(machine.mutex);
      *done = true;
      machine.changed.notify_all();
    };
    stream == nullptr ? reach() : stream->enqueue(reach);  // nothing runs on the default stream
    return cudaSuccess;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  return cuda_call("cudaStreamWaitEvent", cudaErrorUnknown, [&] {
    stream->enqueue([done = event->done] {
      std::unique_lock lock(machine.mutex);
      machine.changed.wait(lock, [&] { return *done; });
    });
    return cudaSuccess;
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return cuda_call("cudaEventQuery", cudaErrorUnknown, [&] {
    const std::scoped_lock lock(machine.mutex);
    return *event->done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return cuda_call("cudaMemcpyAsync", cudaErrorUnknown, [&] {
    check_places("cudaMemcpyAsync", to, size, from, size, kind);
    count_copy(to, from, size, kind);
    stream->enqueue([=] { std::memcpy(to, from, size); });
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  return cuda_call("cudaMemcpy2DAsync", cudaErrorUnknown, [&] {
    constexpr std::size_t kMaxPitch = 0x7fffffff;
    if (to_pitch < width || from_pitch < width || std::max(to_pitch, from_pitch) > kMaxPitch)
      return cudaErrorInvalidPitchValue;
    check_places("cudaMemcpy2DAsync", to, (height - 1) * to_pitch + width, from,
                 (height - 1) * from_pitch + width, kind);
    count_copy(to, from, width * height, kind);
    stream->enqueue([=] {
      for (std::size_t row = 0; row < height; ++row)
        std::memcpy(static_cast<std::byte*>(to) + row * to_pitch,
                    static_cast<const std::byte*>(from) + row * from_pitch, width);
    });
    return cudaSuccess;
  });
}

}  // extern "C"
