#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mapping/base/api.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

/// `rows` runs of `row_bytes`, whose beginnings are `…_pitch` bytes apart on each side. Both sides
/// are memory of the device, or one is memory of the host, page-locked or not.
struct DeviceCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t rows = 1;
  std::size_t row_bytes = 0;
  std::size_t to_pitch = 0;
  std::size_t from_pitch = 0;
  enum class Direction : std::uint8_t { kToHost, kToDevice, kOnDevice };
  Direction direction = Direction::kToHost;
};

/// What the library asks of devices of one kind, whose memory the CPU does not access: copies that
/// run on streams, in the order in which they were enqueued, while the caller goes on. Called from
/// several threads at once, also for one stream. Nothing here waits for a device.
///
/// All but the noexcept functions throw CheckpointError (io), with the text of the driver, for this
/// call or an earlier one that failed meanwhile.
class DeviceRuntime {
 public:
  using Stream = void*;
  using Event = void*;

  virtual ~DeviceRuntime() = default;
  virtual std::string name() const = 0;  ///< for messages: "CUDA"

  /// Host memory that copies of all devices run fastest with, aligned to a page; null if there is
  /// none left. `device` is one that the process uses.
  virtual std::byte* allocate_page_locked(int device, std::size_t bytes) = 0;
  virtual void free_page_locked(std::byte* memory) noexcept = 0;

  /// The stream on which the calling thread's kernels fill tensors of the device.
  virtual Stream producer_stream(int device) = 0;
  virtual Stream create_stream(int device) = 0;
  /// What has been enqueued still runs.
  virtual void destroy_stream(int device, Stream stream) noexcept = 0;

  virtual Event create_event(int device) = 0;
  virtual void destroy_event(int device, Event event) noexcept = 0;
  /// The event is reached once all that was enqueued in the stream before has been done.
  virtual void record(int device, Event event, Stream stream) = 0;
  /// What is enqueued in the stream later begins when the event, as recorded last, is reached.
  virtual void wait(int device, Stream stream, Event event) = 0;
  /// Whether the event, as recorded last, is reached.
  virtual bool reached(int device, Event event) = 0;

  virtual void copy(int device, Stream stream, const DeviceCopy& copy) = 0;
};

struct DeviceSettings {
  /// Limit of page-locked memory that saves and loads of this process use together, in bytes,
  /// beside the staging memory of background saves (AsyncOptions::staging_memory). It is allocated
  /// when first needed, and kept. If the system has less, they use what there is.
  std::uint64_t page_locked = std::uint64_t{64} << 20;
  /// How long a save or load waits for one piece of a copy, including the producer's kernels before
  /// it, until it fails with CheckpointError (unavailable).
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// From now on, tensors of this kind of device are saved and loaded through `runtime`. Replaces the
/// one before, which saves and loads that are running keep; null: there is none. Programs usually
/// call what registers their device, register_cuda() in <dckpt/cuda.h>.
void register_device(Device::Kind kind, std::shared_ptr<DeviceRuntime> runtime,
                     const DeviceSettings& settings = {});

}  // namespace dckpt
