#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "mapping/geometry/strided_copy.h"
#include "mapping/state/tensor.h"
#include "strategies/device/copy_event.h"
#include "strategies/device/registry.h"

namespace dckpt {

/// A stream of copies from and to tensors of one device. It runs after the kernels that the
/// creating thread has enqueued there. Safe to use from several threads.
class CopyStream {
 public:
  /// Throws CheckpointError: (unsupported) if the device is not registered, (io).
  explicit CopyStream(const Device& device);
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  /// Waits until everything before it in the stream has ended. Throws CheckpointError as
  /// PendingCopies::wait().
  void finish();

 private:
  friend class PendingCopies;
  friend class StagedPiece;
  void enqueue(ShapeView sizes, std::size_t item_size, const DeviceCopy& copy,
               const StridedView& from, const StridedView& to);
  void wait_for(const CopyEvent& event) const;
  void wait_for_producer();

  const std::shared_ptr<RegisteredDevice> device_;
  const Device::Kind kind_;
  const int index_;
  const CopyEvent produced_;  ///< reached when the thread's kernels have ended
  std::atomic<bool> is_produced_ = false;
  DeviceRuntime::Stream stream_ = nullptr;
};

/// One stream for each device that holds tensors.
class CopyStreams {
 public:
  /// Throws as CopyStream does.
  void add_devices_of(std::span<const Tensor> tensors);
  CopyStream& of(const Tensor& tensor) const;
  void finish() const;

 private:
  std::vector<std::pair<Device, std::unique_ptr<CopyStream>>> streams_;
};

/// Copies from and to tensor memory that are under way together. Used by one thread at a time. The
/// stream must outlive it, and so must the memory, unless settle() is called first.
class PendingCopies {
 public:
  explicit PendingCopies(CopyStream& stream);
  /// Calls settle().
  ~PendingCopies();
  PendingCopies(const PendingCopies&) = delete;
  PendingCopies& operator=(const PendingCopies&) = delete;

  /// Enqueues a copy of a box, from tensor memory to `host`, or back. Offsets and strides of the
  /// views count elements of `item_size` bytes.
  void to_host(ShapeView sizes, std::size_t item_size, const std::byte* tensor,
               const StridedView& tensor_view, std::byte* host, const StridedView& host_view);
  void to_device(ShapeView sizes, std::size_t item_size, const std::byte* host,
                 const StridedView& host_view, std::byte* tensor, const StridedView& tensor_view);
  /// Enqueues a copy between tensors of the device, which must not overlap.
  void on_device(ShapeView sizes, std::size_t item_size, const std::byte* from,
                 const StridedView& from_view, std::byte* to, const StridedView& to_view);
  /// Must be called after the last of several copies.
  void enqueued();
  /// Waits until the copies have ended. Throws CheckpointError: (unavailable) after the device's
  /// timeout, (io).
  void wait();

  /// Waits for copies that wait() has not waited for. Returns null if they have ended; after an
  /// error or the timeout, the event that tells when the memory may be reused.
  std::shared_ptr<const CopyEvent> settle() noexcept;

 private:
  void enqueue(ShapeView sizes, std::size_t item_size, const DeviceCopy& copy,
               const StridedView& from, const StridedView& to);

  CopyStream& stream_;
  const std::shared_ptr<const CopyEvent> event_;
  bool copying_ = false;   ///< something was enqueued that has not been waited for
  bool recorded_ = false;  ///< the event is recorded behind it
  bool gave_up_ = false;   ///< waiting took too long
};

/// A piece of host memory, PageLockedPool::kPieceBytes long, with the copies to or from it. Used by
/// one thread at a time. The stream must outlive it.
class StagedPiece {
 public:
  /// Waits for memory. A thread that already has a piece must get more with `extra()`.
  explicit StagedPiece(CopyStream& stream);
  /// Returns null if no memory is free now.
  static std::unique_ptr<StagedPiece> extra(CopyStream& stream);
  ~StagedPiece();
  StagedPiece(const StagedPiece&) = delete;
  StagedPiece& operator=(const StagedPiece&) = delete;

  std::byte* memory() const noexcept { return memory_; }

  PendingCopies& copies() noexcept { return copies_; }
  void to_device(ShapeView sizes, std::size_t item_size, const StridedView& piece_view,
                 std::byte* tensor, const StridedView& tensor_view) {
    copies_.to_device(sizes, item_size, memory_, piece_view, tensor, tensor_view);
  }
  void enqueued() { copies_.enqueued(); }
  void wait() { copies_.wait(); }

 private:
  StagedPiece(CopyStream& stream, std::byte* memory);

  PageLockedPool& pool_;
  std::byte* const memory_;
  PendingCopies copies_;
};

}  // namespace dckpt
