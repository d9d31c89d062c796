#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/state/tensor.h"
#include "strategies/device/copy_stream.h"

namespace dckpt {

/// The row-major elements [begin, end) of a tensor in device memory; not none.
struct DeviceRange {
  const Tensor* tensor;
  std::int64_t begin;
  std::int64_t end;
};

/// Delivers ranges one after the other to one thread. They are copied to host memory in pieces,
/// many small ones in each, and each piece is waited for once; while one is consumed, the next one
/// is copied. Whoever has begun one and not ended it takes no other page-locked memory.
class DeviceSequence {
 public:
  /// `streams` must outlive it, and have the devices of the ranges.
  DeviceSequence(const CopyStreams& streams, std::vector<DeviceRange> ranges)
      : streams_(streams), ranges_(std::move(ranges)) {}

  /// Delivers the elements of the next range, of which there is one, in order. Throws
  /// CheckpointError as StagedPiece does; it is of no use afterwards.
  void next(const std::function<void(ByteView)>& sink);

 private:
  /// Elements of one range in a piece.
  struct Run {
    std::size_t offset;
    std::size_t nbytes;
  };
  struct Slot {
    std::unique_ptr<StagedPiece> piece{};  ///< null if there is nothing in it
    std::vector<Run> runs{};
    std::size_t delivered = 0;  ///< runs
  };
  void begin();
  void fill(Slot& slot);
  bool has_more() const;

  const CopyStreams& streams_;
  const std::vector<DeviceRange> ranges_;
  std::size_t next_ = 0;     ///< to be delivered
  std::size_t range_ = 0;    ///< to be copied
  std::int64_t copied_ = 0;  ///< elements of it that are
  std::array<Slot, 2> ring_{};
  std::size_t turn_ = 0;
  Device device_{};  ///< of the ring
};

/// Delivers the elements of tensors in device memory.
class DeviceSource {
 public:
  /// To be made by the thread that called save: copies begin after its kernels. Does not throw; if
  /// a device is not available, the others say so.
  explicit DeviceSource(std::span<const Tensor> tensors) noexcept;

  /// The row-major elements [begin, end) of a tensor, in order. From several threads at once.
  void read(const Tensor& tensor, std::int64_t begin, std::int64_t end,
            const std::function<void(ByteView)>& sink) const;
  /// The same of many, in this order. The source must outlive it.
  DeviceSequence in_order(std::vector<DeviceRange> ranges) const;

  /// Copies of elements of tensors on the same device as `tensor`, to memory of the caller.
  PendingCopies copies_from(const Tensor& tensor) const;
  /// Adds the row-major elements [begin, end) of a tensor.
  static void add(PendingCopies& copies, const Tensor& tensor, std::int64_t begin, std::int64_t end,
                  std::byte* to);

 private:
  const CopyStreams& streams() const;

  CopyStreams streams_;
  std::optional<CheckpointError> failure_;  ///< thrown by several threads, each its own copy
};

}  // namespace dckpt
