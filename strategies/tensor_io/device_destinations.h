#pragma once

#include <map>
#include <memory>
#include <mutex>
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

 private:
  std::map<int, std::unique_ptr<CopyStream>> streams_;
};

inline bool is_in_device_memory(const Tensor& tensor) {
  return tensor.device().kind != Device::Kind::kCpu;
}

}  // namespace dckpt
