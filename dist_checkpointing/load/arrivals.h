#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "dist_checkpointing/load/tensor_request.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// Detects when all elements of a destination have been read. Safe to use from several threads.
class Arrivals {
 public:
  /// Calls `complete` once for each destination, in the thread that reads its last element. All
  /// arguments must outlive this object. Without `complete` nothing is counted.
  Arrivals(const TensorRequest& request, const Metadata& metadata,
           std::function<void(std::uint32_t destination)> complete);

  explicit operator bool() const noexcept { return static_cast<bool>(complete_); }

  /// Records that `bytes` bytes, counted as stored, have arrived in the destination.
  void delivered(std::uint32_t destination, std::uint64_t bytes);
  /// Records that all of these items have arrived, for items not reported one by one.
  void delivered(std::span<const ReadItem> items);
  /// Completes the destinations that are padded after reading and those without elements.
  void finish();

 private:
  std::uint64_t bytes_of(const ReadItem& item) const;

  const Metadata& metadata_;
  std::function<void(std::uint32_t)> complete_;
  std::vector<std::atomic<std::uint64_t>> left_;  ///< bytes missing in each destination
  std::vector<std::uint32_t> late_;               ///< destinations for finish()
};

}  // namespace dckpt
