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

/// Feeds a writer from tensors, in CPU or device memory, and serialized objects. The source of an
/// item is a position in one of the two lists. The thread that called save must construct it.
class StateSource : public ItemSource {
 public:
  StateSource(std::vector<Tensor> tensors, std::vector<Bytes> objects)
      : tensors_(std::move(tensors)), objects_(std::move(objects)), devices_(tensors_) {}

  Bytes object(const WriteItem& item) override { return objects_[item.source]; }
  /// Passes contiguous tensors on without a copy and gathers others piece by piece.
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
    read(item, 0, item.nbytes, sink);
  }
  /// False for tensors in device memory, which are copied ahead of the writer from their beginning.
  bool has_parts(const WriteItem& item) const override { return !is_on_device(item); }
  void part(const WriteItem& item, std::uint64_t begin,
            const std::function<void(ByteView)>& sink) override {
    read(item, begin, std::min(item.nbytes, begin + kPartBytes), sink);
  }

  /// Returns a source that copies items in device memory together and delivers others as this one
  /// does; null if no item is in device memory.
  std::unique_ptr<ItemSource> in_order(const SavePlan& plan,
                                       std::span<const std::size_t> items) override;

  /// Delivers the bytes [begin, end) of an item, which must be whole elements, as tensor() does.
  /// Several threads may call it at once, also for tensors in device memory.
  void read(const WriteItem& item, std::uint64_t begin, std::uint64_t end,
            const std::function<void(ByteView)>& sink);

  Device device_of(const WriteItem& item) const { return tensors_[item.source].device(); }
  /// Returns an empty set of copies to memory of the caller, for items on the same device as
  /// `item`, which must not be the CPU.
  PendingCopies copies_from(const WriteItem& item) const {
    return devices_.copies_from(tensors_[item.source]);
  }
  /// Adds a copy of the bytes [begin, end) of an item, which must be whole elements.
  void add(PendingCopies& copies, const WriteItem& item, std::uint64_t begin, std::uint64_t end,
           std::byte* to) const;

 private:
  class InOrder;

  bool is_on_device(const WriteItem& item) const {
    return device_of(item).kind != Device::Kind::kCpu;
  }
  /// Returns the elements that the bytes [begin, end) of an item hold.
  DeviceRange range_of(const WriteItem& item, std::uint64_t begin, std::uint64_t end) const;

  std::vector<Tensor> tensors_;
  std::vector<Bytes> objects_;
  DeviceSource devices_;
};

}  // namespace dckpt
