#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "mapping/geometry/strided_copy.h"
#include "mapping/state/tensor.h"
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

  /// Copies a box between tensors of the device, which must not overlap. Returns when it is in
  /// place. Throws CheckpointError as StagedPiece::wait().
  void copy(ShapeView sizes, std::size_t item_size, const std::byte* from,
            const StridedView& from_view, std::byte* to, const StridedView& to_view);
  /// Returns when all that it is behind has ended. Throws the same.
  void finish();

 private:
  friend class StagedPiece;
  void enqueue(ShapeView sizes, std::size_t item_size, const DeviceCopy& copy,
               const StridedView& from, const StridedView& to);
  void wait_for(DeviceRuntime::Event event) const;

  const std::shared_ptr<RegisteredDevice> device_;
  const int index_;
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

/// A piece of host memory, PageLockedPool::kPieceBytes long, and the copies to or from it that are
/// under way. One thread at a time; the stream must outlive it.
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

  /// Enqueues a copy of a box, from tensor memory to this piece, or back. Offsets and strides of
  /// the views count elements of `item_size` bytes.
  void from_device(ShapeView sizes, std::size_t item_size, const std::byte* tensor,
                   const StridedView& tensor_view, const StridedView& piece_view);
  void to_device(ShapeView sizes, std::size_t item_size, const StridedView& piece_view,
                 std::byte* tensor, const StridedView& tensor_view);
  /// Call after the last of several copies.
  void enqueued();
  /// Returns when they have ended. Throws CheckpointError: (unavailable) after the device's
  /// timeout, (io).
  void wait();

 private:
  StagedPiece(CopyStream& stream, std::byte* memory);
  void enqueue(ShapeView sizes, std::size_t item_size, const DeviceCopy& copy,
               const StridedView& from, const StridedView& to);

  CopyStream& stream_;
  std::byte* memory_;
  DeviceRuntime::Event event_ = nullptr;
  bool copying_ = false;   ///< something was enqueued that has not been waited for
  bool recorded_ = false;  ///< and the event is behind it
  bool gave_up_ = false;   ///< waiting took too long
};

}  // namespace dckpt
