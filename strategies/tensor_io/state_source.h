#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
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
  bool has_parts(const WriteItem& item) const override { return !is_on_device(item); }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override {
    read(item, begin, std::min(item.nbytes, begin + kPartBytes), sink);
  }

  /// Of items of devices. The others are delivered as by this source.
  std::unique_ptr<ItemSource> in_order(const SavePlan& plan,
                                       std::span<const std::size_t> items) override;

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
  class InOrder;

  bool is_on_device(const WriteItem& item) const {
    return device_of(item).kind != Device::Kind::kCpu;
  }
  /// The bytes [begin, end) of an item.
  DeviceRange range_of(const WriteItem& item, std::uint64_t begin, std::uint64_t end) const;

  std::vector<Tensor> tensors_;
  std::vector<Bytes> objects_;
  DeviceSource devices_;
};

}  // namespace dckpt
