#pragma once

#include <span>

#include "strategies/device/copy_stream.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// Fills destinations in device memory: batches of small boxes are read into host memory, and
/// copied from there while the next batch is read. No memory of the device is allocated.
class DeviceDestinations {
 public:
  /// To be made by the thread that called load: copies begin after its kernels. Throws
  /// CheckpointError as CopyStream does.
  explicit DeviceDestinations(std::span<const Tensor> destinations);

  /// Reads the items, whose destinations are all in device memory, with as many rings of two pieces
  /// as `options.threads`; memory is the devices', not `options.staging`. Returns when the elements
  /// are in place. `destinations` as for read_tensors.
  ReadStats read(const CheckpointReader& reader, std::span<const ReadItem> items,
                 std::span<const Tensor> destinations, const ReadOptions& options);
  void fill_zero(const Tensor& destination);
  /// Returns when the producers' kernels have ended, behind which the destinations may be written.
  void wait_for_producers() const { streams_.finish(); }

  /// Copies a box between host memory and a tensor on a device. Returns when it is in place. From
  /// several threads at once.
  void put(ShapeView sizes, const std::byte* from, const StridedView& from_view, const Tensor& to,
           const StridedView& to_view) const;
  void get(ShapeView sizes, const Tensor& from, const StridedView& from_view, std::byte* to,
           const StridedView& to_view) const;
  /// Between two tensors of which at least one is on a device.
  void copy(ShapeView sizes, const Tensor& from, const StridedView& from_view, const Tensor& to,
            const StridedView& to_view) const;

 private:
  CopyStreams streams_;
};

inline bool is_in_device_memory(const Tensor& tensor) {
  return tensor.device().kind != Device::Kind::kCpu;
}

}  // namespace dckpt
