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

/// A stream of copies from and to tensors of one device, behind what the creating thread's kernels
/// do there. Safe to use from several threads.
class CopyStream {
 public:
  /// Throws CheckpointError: (unsupported) if the device is not registered, (io).
  explicit CopyStream(const Device& device);
  ~CopyStream();
  CopyStream(const CopyStream&) = delete;
  CopyStream& operator=(const CopyStream&) = delete;

  /// Returns when all that it is behind has ended. Throws CheckpointError as PendingCopies::wait().
  void finish();

 private:
  friend class PendingCopies;
  friend class StagedPiece;
  void enqueue(ShapeView sizes, std::size_t item_size, const DeviceCopy& copy,
               const StridedView& from, const StridedView& to);
  void wait_for(const CopyEvent& event) const;
  void wait_for_producer();

  const std::shared_ptr<RegisteredDevice> device_;
  const int index_;
  const CopyEvent produced_;  ///< reached when the thread's kernels have ended
  std::atomic<bool> is_produced_ = false;
  DeviceRuntime::Stream stream_ = nullptr;
};

/// One for each device that tensors are on.
class CopyStreams {
 public:
  /// Throws as CopyStream does.
  void add_devices_of(std::span<const Tensor> tensors);
  CopyStream& of(const Tensor& tensor) const;
  void finish() const;

 private:
  std::vector<std::pair<Device, std::unique_ptr<CopyStream>>> streams_;
};

/// Copies from and to tensor memory that are under way together. One thread at a time;
/// the stream must outlive it, and so must the memory, unless settle() is called first.
class PendingCopies {
 public:
  explicit PendingCopies(CopyStream& stream);
  /// Settles.
  ~PendingCopies();
  PendingCopies(const PendingCopies&) = delete;
  PendingCopies& operator=(const PendingCopies&) = delete;

  /// Enqueues a copy of a box, from tensor memory to `host`, or back. Offsets and strides of the
  /// views count elements of `item_size` bytes.
  void to_host(ShapeView sizes, std::size_t item_size, const std::byte* tensor,
               const StridedView& tensor_view, std::byte* host, const StridedView& host_view);
  void to_device(ShapeView sizes, std::size_t item_size, const std::byte* host,
                 const StridedView& host_view, std::byte* tensor, const StridedView& tensor_view);
  /// Between tensors of the device, which must not overlap.
  void on_device(ShapeView sizes, std::size_t item_size, const std::byte* from,
                 const StridedView& from_view, std::byte* to, const StridedView& to_view);
  /// Call after the last of several copies.
  void enqueued();
  /// Returns when they have ended. Throws CheckpointError: (unavailable) after the device's
  /// timeout, (io).
  void wait();

  /// Waits for what wait() has not waited for yet. Null if it has ended; else, after an error or
  /// the timeout, the event that tells when the memory may be used for something else.
  std::shared_ptr<const CopyEvent> settle() noexcept;

 private:
  void enqueue(ShapeView sizes, std::size_t item_size, const DeviceCopy& copy,
               const StridedView& from, const StridedView& to);

  CopyStream& stream_;
  const std::shared_ptr<const CopyEvent> event_;
  bool copying_ = false;   ///< something was enqueued that has not been waited for
  bool recorded_ = false;  ///< and the event is behind it
  bool gave_up_ = false;   ///< waiting took too long
};

/// A piece of host memory, PageLockedPool::kPieceBytes long, with the copies to or from it. One
/// thread at a time; the stream must outlive it.
class StagedPiece {
 public:
  /// Waits for memory; a thread that has a piece already asks for more with `extra()`.
  explicit StagedPiece(CopyStream& stream);
  /// Null if no memory is free now.
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
