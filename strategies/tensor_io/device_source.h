#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/state/tensor.h"
#include "strategies/device/copy_stream.h"

namespace dckpt {

/// Delivers the elements of tensors in device memory: while one piece is consumed, the next one is
/// copied.
class DeviceSource {
 public:
  /// To be made by the thread that called save: copies begin after its kernels. Does not throw; if
  /// a device is not available, read() says so.
  explicit DeviceSource(std::span<const Tensor> tensors) noexcept;

  /// The row-major elements [begin, end) of a tensor, in order. From several threads at once.
  void read(const Tensor& tensor, std::int64_t begin, std::int64_t end,
            const std::function<void(ByteView)>& sink);

  /// Copies of elements of tensors on the same device as `tensor`, to memory of the caller.
  PendingCopies copies_from(const Tensor& tensor) const;
  /// Adds the row-major elements [begin, end) of a tensor.
  static void add(PendingCopies& copies, const Tensor& tensor, std::int64_t begin, std::int64_t end,
                  std::byte* to);

 private:
  CopyStream& stream_of(const Tensor& tensor) const;

  CopyStreams streams_;
  std::optional<CheckpointError> failure_;  ///< thrown by several threads, each its own copy
};

}  // namespace dckpt
