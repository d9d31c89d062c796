#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>

#include "mapping/base/bytes.h"
#include "mapping/base/progress.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/tensor.h"

namespace dckpt {

/// The destinations of a read. No other class knows where their memory is. Safe to share between
/// threads that write to different elements.
class Delivery {
 public:
  using Delivered = std::function<void(std::uint32_t destination, std::uint64_t bytes)>;

  /// `progress` may be null. `delivered` is called for each part of an item; it may be empty.
  Delivery(const Metadata& metadata, std::span<const Tensor> destinations,
           ProgressCounter* progress, Delivered delivered)
      : metadata_(metadata),
        destinations_(destinations),
        progress_(progress),
        delivered_(std::move(delivered)) {}

  /// Returns whether files may be read into the item's destination. If not, its elements are
  /// converted from memory on the way.
  bool takes_reads(const ReadItem& item) const;
  /// Returns the memory of `bytes` from element `target` of a destination that takes reads. Call
  /// arrived() when they are there.
  MutableByteView memory(const ReadItem& item, std::int64_t target, std::uint64_t bytes) const;

  /// Copies elements from memory; the item's source view is relative to `source`. put() also counts
  /// them.
  void copy(const ReadItem& item, const std::byte* source) const;
  void put(const ReadItem& item, const std::byte* source);
  void arrived(const ReadItem& item);

  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  DType stored(const ReadItem& item) const {
    return metadata_.tensors[item.tensor].properties.dtype;
  }

  const Metadata& metadata_;
  std::span<const Tensor> destinations_;
  ProgressCounter* const progress_;
  Delivered delivered_;
  std::atomic<std::uint64_t> bytes_ = 0;
};

}  // namespace dckpt
