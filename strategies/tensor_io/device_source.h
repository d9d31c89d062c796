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

/// The row-major elements [begin, end) of a tensor in device memory; not empty.
struct DeviceRange {
  const Tensor* tensor;
  std::int64_t begin;
  std::int64_t end;
};

/// Delivers ranges one after the other to one thread. They are copied to host memory in pieces that
/// each hold many small ranges, with one wait for each piece. While one piece is consumed, the next
/// one is copied. A thread that has begun a sequence must not take other page-locked memory until
/// it has ended.
class DeviceSequence {
 public:
  /// `streams` must outlive the sequence and have the devices of the ranges.
  DeviceSequence(const CopyStreams& streams, std::vector<DeviceRange> ranges)
      : streams_(streams), ranges_(std::move(ranges)) {}

  /// Delivers the elements of the next range, which must exist, in order. Throws CheckpointError as
  /// StagedPiece does; the sequence is unusable afterwards.
  void next(const std::function<void(ByteView)>& sink);

 private:
  /// The elements of one range in a piece.
  struct Run {
    std::size_t offset;
    std::size_t nbytes;
  };
  struct Slot {
    std::unique_ptr<StagedPiece> piece{};  ///< null if the slot is empty
    std::vector<Run> runs{};
    std::size_t delivered = 0;  ///< number of runs delivered
  };
  void begin();
  void fill(Slot& slot);
  bool has_more() const;

  const CopyStreams& streams_;
  const std::vector<DeviceRange> ranges_;
  std::size_t next_ = 0;     ///< next range to deliver
  std::size_t range_ = 0;    ///< next range to copy
  std::int64_t copied_ = 0;  ///< elements of that range already copied
  std::array<Slot, 2> ring_{};
  std::size_t turn_ = 0;
  Device device_{};  ///< the device of the ring
};

/// Delivers the elements of tensors in device memory.
class DeviceSource {
 public:
  /// The thread that called save must construct it, so that copies begin after its kernels. Does
  /// not throw; if a device is not available, the other functions throw the error.
  explicit DeviceSource(std::span<const Tensor> tensors) noexcept;

  /// Delivers the row-major elements [begin, end) of a tensor, in order. Several threads may call
  /// it at once.
  void read(const Tensor& tensor, std::int64_t begin, std::int64_t end,
            const std::function<void(ByteView)>& sink) const;
  /// Returns a sequence that delivers many ranges, in this order. The source must outlive it.
  DeviceSequence in_order(std::vector<DeviceRange> ranges) const;

  /// Returns an empty set of copies from tensors on the same device as `tensor` to memory of the
  /// caller.
  PendingCopies copies_from(const Tensor& tensor) const;
  /// Adds a copy of the row-major elements [begin, end) of a tensor.
  static void add(PendingCopies& copies, const Tensor& tensor, std::int64_t begin, std::int64_t end,
                  std::byte* to);

 private:
  const CopyStreams& streams() const;

  CopyStreams streams_;
  std::optional<CheckpointError> failure_;  ///< several threads throw it, each a copy of its own
};

}  // namespace dckpt
