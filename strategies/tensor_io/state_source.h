#pragma once

#include <algorithm>
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
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    read(item, 0, item.nbytes, sink);
  }
  /// Not of tensors of devices: those are copied ahead of the writer, from their beginning.
  bool has_parts(const WriteItem& item) const override {
    return device_of(item).kind == Device::Kind::kCpu;
  }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override {
    read(item, begin, std::min(item.nbytes, begin + kPartBytes), sink);
  }

  /// Delivers the bytes [begin, end) of an item, which are whole elements, as tensor() does. From
  /// several threads at once, for tensors of devices too.
  void read(const WriteItem& item, std::uint64_t begin, std::uint64_t end,
            const std::function<void(ByteView)>& sink);

  Device device_of(const WriteItem& item) const { return tensors_[item.source].device(); }
  /// For items of the same device as `item`, which is not the CPU: copies to memory of the caller.
  PendingCopies copies_from(const WriteItem& item) const {
    return devices_.copies_from(tensors_[item.source]);
  }
  /// Adds the bytes [begin, end) of an item, which are whole elements.
  void add(PendingCopies& copies, const WriteItem& item, std::uint64_t begin, std::uint64_t end,
           std::byte* to) const;

 private:
  std::vector<Tensor> tensors_;
  std::vector<Bytes> objects_;
  DeviceSource devices_;
};

}  // namespace dckpt
