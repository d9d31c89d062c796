#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "mapping/base/api.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

/// A copy of `rows` runs of `row_bytes`, whose beginnings are `…_pitch` bytes apart on each side.
/// Both sides are memory of the device, or one is memory of the host, page-locked or not.
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

/// The interface to devices of one kind, whose memory the CPU does not access. Copies run on
/// streams, in the order in which they were enqueued, while the caller continues. Functions are
/// called from several threads at once, also for one stream. None of them waits for a device.
///
/// All but the noexcept functions throw CheckpointError (io), with the text of the driver, for this
/// call or an earlier one that failed meanwhile.
class DeviceRuntime {
 public:
  using Stream = void*;
  using Event = void*;

  virtual ~DeviceRuntime() = default;
  virtual std::string name() const = 0;  ///< name for messages: "CUDA"

  /// Allocates host memory that is fastest for copies of all devices, aligned to a page. Returns
  /// null if there is none left. `device` is one that the process uses.
  virtual std::byte* allocate_page_locked(int device, std::size_t bytes) = 0;
  virtual void free_page_locked(std::byte* memory) noexcept = 0;

  /// Returns the stream on which the calling thread's kernels fill tensors of the device.
  virtual Stream producer_stream(int device) = 0;
  virtual Stream create_stream(int device) = 0;
  /// Destroys a stream; everything enqueued in it still runs.
  virtual void destroy_stream(int device, Stream stream) noexcept = 0;

  virtual Event create_event(int device) = 0;
  virtual void destroy_event(int device, Event event) noexcept = 0;
  /// Records the event, which is reached once everything enqueued in the stream before has been
  /// done.
  virtual void record(int device, Event event, Stream stream) = 0;
  /// Makes everything enqueued in the stream later wait until the event, as last recorded, is
  /// reached.
  virtual void wait(int device, Stream stream, Event event) = 0;
  /// Returns whether the event, as last recorded, is reached.
  virtual bool reached(int device, Event event) = 0;

  virtual void copy(int device, Stream stream, const DeviceCopy& copy) = 0;
};

struct DeviceSettings {
  /// The limit, in bytes, of the page-locked memory that saves and loads of this process use
  /// together, beside the staging memory of background saves (AsyncOptions::staging_memory). It is
  /// allocated when first needed, and kept. If the system has less, they use what there is.
  std::uint64_t page_locked = std::uint64_t{64} << 20;
  /// The time that a save or load waits for one piece of a copy, including the producer's kernels
  /// before it, until it fails with CheckpointError (unavailable).
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

/// Makes saves and loads of tensors on this kind of device use `runtime`; null for none. Running
/// saves and loads keep the previous one. Programs usually call the function that registers their
/// device, register_cuda() in <dckpt/cuda.h>.
void register_device(Device::Kind kind, std::shared_ptr<DeviceRuntime> runtime,
                     const DeviceSettings& settings = {});

}  // namespace dckpt
