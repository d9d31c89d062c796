#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "mapping/state/tensor.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/tensor_io/device_source.h"

namespace dckpt {

/// Feeds a writer from tensors and serialised objects in memory, of the CPU or of devices. Item
/// sources are positions in the two lists. To be made by the thread that called save.
class StateSource : public ItemSource {
 public:
  StateSource(std::vector<Tensor> tensors, std::vector<Bytes> objects)
      : tensors_(std::move(tensors)), objects_(std::move(objects)), devices_(tensors_) {}

  Bytes object(const WriteItem& item) override { return objects_[item.source]; }
  /// Contiguous tensors are passed on without a copy, others gathered piece by piece.
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;

 private:
  std::vector<Tensor> tensors_;
  std::vector<Bytes> objects_;
  DeviceSource devices_;
};

}  // namespace dckpt
