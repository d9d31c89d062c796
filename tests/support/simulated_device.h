#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "mapping/state/tensor.h"
#include "strategies/device/runtime.h"

namespace dckpt::testing {

/// GPUs whose streams are threads. Their memory is mapped twice. Any access through the pointers of
/// tensors is a segmentation fault. Copies go through the other mapping, later, and those of
/// different streams in any order.
class SimulatedDevice final : public DeviceRuntime {
 public:
  explicit SimulatedDevice(int devices = 1);
  ~SimulatedDevice() override;

  /// Returns a tensor on a device with the content, the shape and the strides of `content`.
  Tensor on_device(const Tensor& content, int device = 0);
  /// Returns a copy in CPU memory, once the device is idle.
  Tensor on_cpu(const Tensor& tensor);
  /// Enqueues in the producer's stream an operation that fills a tensor after a while.
  void produce(const Tensor& tensor, const Tensor& content, std::chrono::milliseconds after);

  /// Makes the call after `calls` more calls fail. Negative: none fails.
  void fail_after(int calls) { calls_left_ = calls; }
  bool has_failed() const { return calls_left_ == -1; }
  /// Limits the page-locked memory that can be allocated.
  void limit_page_locked(std::uint64_t bytes) { page_locked_limit_ = bytes; }
  /// Stops all streams until called with false. Enqueuing a thousand copies in one meanwhile is
  /// misuse: drivers hold that many, and then block.
  void hang(bool stop);
  bool is_idle() const;  ///< nothing is enqueued in any stream

  /// Returns how often events were recorded, each time to be waited for.
  int recorded() const { return recorded_; }
  /// Returns the bytes of page-locked memory not released yet.
  std::uint64_t page_locked() const { return page_locked_; }
  /// Returns the number of page-locked allocations, streams and events not released yet.
  int leaked() const { return objects_; }
  std::string misuse() const;  ///< rules that a caller broke; empty if none

  std::string name() const override { return "simulated"; }
  std::byte* allocate_page_locked(int device, std::size_t bytes) override;
  void free_page_locked(std::byte* memory) noexcept override;
  Stream producer_stream(int device) override;
  Stream create_stream(int device) override;
  void destroy_stream(int device, Stream stream) noexcept override;
  Event create_event(int device) override;
  void destroy_event(int device, Event event) noexcept override;
  void record(int device, Event event, Stream stream) override;
  void wait(int device, Stream stream, Event event) override;
  bool reached(int device, Event event) override;
  void copy(int device, Stream stream, const DeviceCopy& copy) override;

 private:
  struct Machine;
  void count_call(const char* what);

  std::unique_ptr<Machine> machine_;
  std::atomic<int> calls_left_{-2};
  std::atomic<int> objects_{0};
  std::atomic<int> recorded_{0};
  std::atomic<std::uint64_t> page_locked_limit_{~std::uint64_t{0}};
  std::atomic<std::uint64_t> page_locked_{0};
};

/// Registers a simulated device as CUDA for the lifetime of the object.
struct RegisteredSimulation {
  explicit RegisteredSimulation(const DeviceSettings& settings = {}, int devices = 1)
      : device(std::make_shared<SimulatedDevice>(devices)) {
    register_device(Device::Kind::kCuda, device, settings);
  }
  ~RegisteredSimulation() { register_device(Device::Kind::kCuda, nullptr); }
  RegisteredSimulation(const RegisteredSimulation&) = delete;
  RegisteredSimulation& operator=(const RegisteredSimulation&) = delete;
  SimulatedDevice* operator->() const { return device.get(); }

  std::shared_ptr<SimulatedDevice> device;
};

}  // namespace dckpt::testing
